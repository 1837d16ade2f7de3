//! A campaign's trials in the form that CI systems read: a test case for each, which fails where
//! the program crashed, hung, lost data or leaked.

use super::{Trial, Verdict};
use std::fmt::Write;

/// JUnit's XML: one suite, named for the program.
pub fn junit(program: &str, trials: &[Trial]) -> String {
    let count = |is: fn(&Trial) -> bool| trials.iter().filter(|trial| is(trial)).count();
    let (failures, skipped) = (count(|trial| trial.verdict < Verdict::Failed), count(is_skipped));
    let name = escaped(program);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"{name}\" tests=\"{}\" \
         failures=\"{failures}\" skipped=\"{skipped}\">\n",
        trials.len()
    );
    for trial in trials {
        case(&mut text, &name, trial);
    }
    text.push_str("</testsuite>\n</testsuites>\n");
    text
}

/// Nothing of the program met the fault.
fn is_skipped(trial: &Trial) -> bool {
    matches!(trial.verdict, Verdict::NotMet | Verdict::Start)
}

fn case(to: &mut String, program: &str, trial: &Trial) {
    let verdict = serde_json::to_value(trial.verdict).ok();
    let verdict = verdict.as_ref().and_then(|verdict| verdict.as_str()).unwrap_or_default();
    let mut lines = trial.findings.clone();
    lines.extend(trial.stack.iter().enumerate().map(|(nth, frame)| format!("#{nth:<2} {frame}")));
    lines.push(format!("replay: {}", trial.replay));
    let (rule, lines) = (escaped(&trial.rule), escaped(&lines.join("\n")));
    // Writing to a string never fails.
    let _ = match trial.verdict {
        bad if bad < Verdict::Failed => writeln!(
            to,
            "<testcase classname=\"{program}\" name=\"{rule}\"><failure type=\"{verdict}\" message=\"{verdict}, status \
             {}\">{lines}</failure></testcase>",
            trial.status
        ),
        _ if is_skipped(trial) => writeln!(
            to,
            "<testcase classname=\"{program}\" name=\"{rule}\"><skipped message=\"{verdict}\"/></testcase>"
        ),
        _ => writeln!(to, "<testcase classname=\"{program}\" name=\"{rule}\"/>"),
    };
}

/// Text of an element or an attribute. What XML has no character for becomes a question mark.
fn escaped(text: &str) -> String {
    let mut to = String::new();
    for c in text.chars() {
        match c {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '"' => to.push_str("&quot;"),
            '\n' | '\t' => to.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => to.push('?'),
            c => to.push(c),
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(verdict: Verdict, rule: &str) -> Trial {
        Trial {
            fault: "enospc",
            rule: rule.to_owned(),
            site: "0x1".to_owned(),
            call: "write",
            verdict,
            status: 139,
            findings: vec!["it wrote \"a\" & \u{1}".to_owned()],
            not_compared: Vec::new(),
            stack: vec!["commit<T>+0x3".to_owned()],
            replay: "orbit hijack --inject 'write(size>1) -> ENOSPC' -- x".to_owned(),
        }
    }

    #[test]
    fn failures_have_stack_and_replay_and_the_rest_is_counted() {
        let trials = [
            trial(Verdict::Crashed, "write(size>1) -> ENOSPC"),
            trial(Verdict::Failed, "read -> EINTR"),
            trial(Verdict::Start, "mmap -> ENOMEM"),
        ];
        let text = junit("./a \"b\"", &trials);
        for part in [
            "<testsuite name=\"./a &quot;b&quot;\" tests=\"3\" failures=\"1\" skipped=\"1\">",
            "name=\"write(size&gt;1) -&gt; ENOSPC\"><failure type=\"crashed\" message=\"crashed, status 139\">it wrote \
             &quot;a&quot; &amp; ?\n#0  commit&lt;T&gt;+0x3\nreplay: orbit hijack --inject 'write(size&gt;1) -&gt; \
             ENOSPC' -- x</failure></testcase>\n",
            "name=\"read -&gt; EINTR\"/>\n",
            "name=\"mmap -&gt; ENOMEM\"><skipped message=\"start\"/></testcase>\n",
        ] {
            assert!(text.contains(part), "{part}\nin\n{text}");
        }
        assert!(text.ends_with("</testsuite>\n</testsuites>\n"));
    }
}
