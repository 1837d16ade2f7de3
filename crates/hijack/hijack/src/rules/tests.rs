//! What rules mean, and what is said about those that mean nothing.

use super::*;

fn one(text: &str) -> Rule {
    Rules::parse(text).unwrap_or_else(|error| panic!("{error}")).0.remove(0)
}

#[test]
fn the_examples_mean_what_they_say() {
    let rule = one("write(fd=path(\"/var/log/*\")) -> ENOSPC after 10");
    assert_eq!((rule.calls.as_slice(), rule.skip), (&[1][..], 10));
    assert_eq!(rule.action, Action::Answer(-i64::from(libc::ENOSPC)));
    assert_eq!(rule.conditions[0].test, Test::FdPath("/var/log/*".into()));
    let rule = one("connect(port=443) -> delay 200ms p=0.1");
    assert_eq!((rule.action, rule.conditions[0].test.clone()), (Action::Delay(200_000_000), Test::Port(443, 443)));
    assert!((0.099..0.101).contains(&(f64::from(rule.chance) / f64::from(u32::MAX))));
    assert_eq!(one("openat(path=\"/etc/hosts\") -> \"/run/fake\"").action, Action::Text(0x80, "/run/fake".into()));
    let rule = one("* at site 12 -> EINTR once");
    assert_eq!((rule.site, rule.times), (12, 1));
    assert!(!rule.calls.contains(&(libc::SYS_exit_group as u16)), "what never returns has no result");
    let rule = one("open*(flags&O_CREAT|O_TRUNC) -> pass");
    assert_eq!(rule.conditions[0].test, Test::Bits(0o1100));
    assert_eq!(one("read(size>4K) -> size=1").action, Action::Argument(0x84, 1));
    assert_eq!(one("kill(signal=SIGTERM) -> 0").conditions[0].test, Test::Int(15, 15));
    assert_eq!(one("write(fd!=1..2) -> kill SIGTERM every 3 times 2").every, 3);
}

#[test]
fn comments_and_separators_outside_of_quotes_divide() {
    let rules = Rules::parse("# all\nread -> count; open(path=\"a;#b\") -> pass # end\n\n").expect("rules");
    assert_eq!(rules.texts().collect::<Vec<_>>(), ["read -> count", "open(path=\"a;#b\") -> pass"]);
}

#[test]
fn errors_name_the_position_and_what_would_be_right() {
    for (text, column, problem, right) in [
        ("wirte -> EIO", 1, "no system call `wirte`", "--policies"),
        ("write", 6, "the rule ends here", "`->`"),
        ("write -> ENOSPCX", 10, "no action `ENOSPCX`", "an error (ENOSPC)"),
        ("write ->", 9, "no action", "delay 200ms"),
        ("getpid(path=\"x\") -> 0", 8, "getpid has no argument `path`", "arg0"),
        ("write(colour=3) -> 0", 7, "no argument `colour`", "path"),
        ("write(fd 3) -> 0", 10, "no comparison", "!="),
        ("write(fd=) -> 0", 10, "is not a number", "a number"),
        ("write(fd=x) -> 0", 10, "`x` is not a number", "a number"),
        ("open(path=3) -> 0", 11, "`path` is a string", "path=\"/etc/*\""),
        ("open(path<\"a\") -> 0", 11, "compares numbers", "!="),
        ("open(flags&O_CREATE) -> 0", 12, "no name `O_CREATE`", "O_WRONLY"),
        ("read -> delay 5", 15, "`5` is not a duration", "200ms"),
        ("read -> EIO p=2", 15, "`2` is not a chance", "0 to 1"),
        ("read -> EIO times 0", 19, "never acts", "from 1"),
        ("read -> EIO sometimes", 13, "`sometimes` is unknown here", "once"),
        ("read(size=9..1) -> EIO", 11, "an empty range", "smaller"),
        ("exit_group -> 0", 15, "never return", "kill"),
        ("getpid -> \"x\"", 11, "getpid has no path", "an error"),
        ("read -> kill SIGFOO", 14, "no signal `SIGFOO`", "SIGTERM"),
        ("open(path=\"x) -> 0", 11, "no string in quotes", "\"/var/log/*\""),
        ("read(fd=1,fd=1,fd=1,fd=1,fd=1) -> 0", 26, "more than 4 conditions", "fewer"),
        ("read at 5 -> EIO", 9, "`5 -> EIO` is unknown", "at site"),
    ] {
        let error = Rules::parse(text).expect_err(text).to_string();
        assert!(error.contains(&format!("column {column}:")), "{text}: {error}");
        assert!(error.contains(problem) && error.contains(right), "{text}: {error}");
    }
    let long = format!("open(path=\"{}\") -> 0", "x".repeat(200));
    assert!(Rules::parse(&long).expect_err("long").to_string().contains("127 bytes at most"));
    let many = "read -> count\n".repeat(65);
    assert!(Rules::parse(&many).expect_err("many").to_string().contains("more than 64 rules"));
}

#[test]
fn a_line_is_named_in_a_file() {
    let error = Rules::parse("read -> count\n\n  write -> WRONG\n").expect_err("wrong").to_string();
    assert!(error.contains("line 3, column 12"), "{error}");
}

#[test]
fn toml_says_the_same_as_the_language() {
    let text = r#"
# Disks that fill up.
[[rule]]
calls = "write|pwrite64"
where = 'fd=path("/var/log/*"), size>4K'
action = "ENOSPC"
after = 10
times = 3

[[rule]]
calls = "connect"
where = "port=443"
action = "delay 200ms"
p = 0.1

[[rule]]
calls = "unlink*"
site = 7
action = "ask service judge"
every = 2
"#;
    let language = "write|pwrite64(fd=path(\"/var/log/*\"), size>4K) -> ENOSPC after 10 times 3
        connect(port=443) -> delay 200ms p=0.1
        unlink* at site 7 -> ask service judge every 2";
    assert_eq!(Rules::parse_toml(text), Rules::parse(language));
}

#[test]
fn errors_in_toml_name_the_line() {
    let cases = [
        ("\n\n[[rule]]\ncalls = \"wriet\"\naction = \"ENOSPC\"\n", "line 3", "write"),
        ("[[rule]]\ncalls = \"write\"\naction = \"ENOSPX\"\n", "line 1", "ENOSPC"),
        ("[[rule]]\ncalls = \"write\"\nacton = \"ENOSPC\"\n", "line 3", "acton"),
        ("[[rule]]\ncalls = \"write\"\naction = 5\n", "line 3", "string"),
        ("[[rule]]\ncalls = \"write\n", "line 2", "string"),
        ("[rules]\n", "line 1", "[[rule]]"),
    ];
    for (text, line, right) in cases {
        let error = Rules::parse_toml(text).expect_err(text).to_string();
        assert!(error.contains(line) && error.contains(right), "{text}: {error}");
    }
}
