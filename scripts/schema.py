#!/usr/bin/env python3
"""Describes events and states that commands give out as JSON: a JSON Schema for each, and one page of them all.

    scripts/schema.py        writes docs/reference/schema/*.json and docs/reference/events.md

The schemas are read from the Rust types that the commands serialize, their comments and serde's attributes; what has no type is in
PLAIN. What is not understood is an error. `scripts/links.py` complains when a file says something else than the types. Tests check
what commands give out against the schemas (`orbit_testing::schema`), so a field that only one side has fails them.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference" / "schema"
PAGE = ROOT / "docs" / "reference" / "events.md"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

KEEP = "crates/keep/keep/src/report.rs"
WATCH = "crates/watch/watch/src/show.rs"
SYSTEM = "crates/watch/shd/src/watch.rs"

# Name of the file, the command that shows it, and for each type of events: where it is, where the type of its lines is (None: it is
# a line itself), and the names of the events that are meant (all, if there are none).
STREAMS = [
    ("keep-events", "orbit keep --events keep.jsonl -- PROGRAM", [((KEEP, "Event"), (KEEP, "Line"))]),
    (
        "watch-events",
        "orbit watch --events hangs.jsonl -- PROGRAM",
        [(("crates/watch/ahd/src/event.rs", "Event"), (WATCH, "Line")), ((WATCH, "Own"), (WATCH, "Line"))],
    ),
    (
        "watch-system-events",
        "orbit watch --system --events cpus.jsonl",
        [((SYSTEM, "Line"), None), ((WATCH, "Own"), (WATCH, "Line"), ["module"])],
    ),
]

# Fields of a line that only these events have, always.
ONLY_OF = {(WATCH, "command"): ["hang"]}

# Where a type is that another file uses, by its name.
ELSEWHERE = {
    "How": "crates/watch/shd/src/lib.rs",
    "Rung": "crates/keep/keep/src/ladder.rs",
    "Restored": "crates/keep/keep/src/restore.rs",
    "Sure": "crates/base/inspect/src/lib.rs",
    "Frame": "crates/base/inspect/src/stacks/mod.rs",
    "PyFrame": "crates/base/inspect/src/python/mod.rs",
}

# How serde's `with` writes a number: what the comment says of the unit, and what is true of the JSON.
WITH = {"json::ms": (r"$", " In ms."), "json::ns_as_ms": (r", ns\.$", ", ms."), "json::percent": (r", 0 to 1\.$", ", percent.")}

# Types that are no structures.
SIMPLE = {"bool": {"type": "boolean"}, "String": {"type": "string"}, "str": {"type": "string"}, "char": {"type": "string"}}
SIMPLE |= {name: {"type": "number"} for name in ("f32", "f64")}
SIMPLE |= {name: {"type": "integer"} for name in ("i8", "i16", "i32", "i64", "isize")}
SIMPLE |= {name: {"type": "integer", "minimum": 0} for name in ("u16", "u32", "u64", "usize")}
SIMPLE |= {"u8": {"type": "integer", "minimum": 0, "maximum": 255}}


def plain(description, **fields):
    """An object without a type in Rust; a field of two is its schema and what it is."""
    return {
        "description": description,
        "type": "object",
        "properties": {name: {**schema, "description": text} for name, (schema, text) in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def or_null(schema):
    return {"anyOf": [schema, {"type": "null"}]}


TEXT, COUNT, ID = SIMPLE["String"], SIMPLE["usize"], SIMPLE["i32"]
KINDS, SURE = {"enum": ["busy", "blocked"]}, {"enum": ["guess", "likely", "certain"]}
HEARD = {"enum": ["not connected yet", "heard", "lost"]}


def list_of(name):
    return {"type": "array", "items": {"$ref": f"#/$defs/{name}"}}


# What has no type in Rust: crates/agent/src/state.rs makes it.
PLAIN = {
    "agent-status": (
        "orbit agent status --json",
        plain(
            "What the agent watches, what hangs, and what it cost.",
            version=(TEXT, "The agent's version."),
            config=(TEXT, "The configuration's file."),
            rejected=(or_null(TEXT), "Why the last configuration was rejected; null if it was not."),
            metrics=(or_null(TEXT), "Address of the page of metrics, if there is one."),
            page=(or_null(TEXT), "Address or file of the status page, if there is one."),
            policies=(list_of("Policy"), "The policies, in the order of the file."),
            services=(list_of("Service"), "What is watched; 1000 at most."),
            hangs=(list_of("Hang"), "Hangs that continue; 1000 at most."),
            unwatched=(list_of("Unwatched"), "What is selected and not watched; 1000 at most."),
            listens=(or_null(TEXT), "Address at which other nodes may use the pins of this one, if they may."),
            nodes=(list_of("Node"), "Other nodes whose pins are used."),
            cpu_seconds=(SIMPLE["f64"], "CPU time of the agent's processes."),
            resident_bytes=(COUNT, "Resident memory of the agent's processes."),
        ),
        {
            "Policy": plain(
                "A policy.",
                policy=(TEXT, "Its name."),
                on_hang=(TEXT, "What it does on a hang."),
                unusable=(or_null(TEXT), "Why it can decide nothing here; null if it can."),
            ),
            "Service": plain(
                "Processes of one service under one policy.",
                service=(TEXT, "The service in words."),
                policy=(TEXT, "The policy's name."),
                processes=(COUNT, "Its watched processes."),
            ),
            "Hang": plain(
                "A hang that continues.",
                service=(TEXT, "The service in words."),
                policy=(TEXT, "The policy's name."),
                kind=(KINDS, "Whether it computes or waits."),
                sure=(SURE, "How sure it is."),
                why=(TEXT, "One sentence."),
                since=(TEXT, "Since when it hangs, RFC 3339."),
                at=(TEXT, "When it was reported, RFC 3339."),
                did=(TEXT, "What was done, in a sentence; empty if nothing was."),
                pid=(ID, "Process."),
                tid=(ID, "Thread."),
            ),
            "Node": plain(
                "Another node.",
                node=(TEXT, "Its name."),
                address=(TEXT, "Where its agent listens."),
                state=(HEARD, "Whether it is heard."),
                seconds=(or_null(SIMPLE["f64"]), "For how long; null if it is not connected yet."),
                why=(or_null(TEXT), "Why it is lost; null if it is not."),
            ),
            "Unwatched": plain(
                "Processes that are not watched for the same reason.",
                service=(TEXT, "The service in words."),
                command=(TEXT, "The command's name."),
                policy=(TEXT, "The policy that selects them."),
                why=(TEXT, "The reason."),
                processes=(COUNT, "How many."),
            ),
        },
    ),
}

# Lines that are written without a type: where, the text there that proves it, and the event.
UNTYPED = {
    "keep-events": (
        KEEP,
        '{{\\"event\\":\\"left-out\\",\\"count\\":{lost}}}',
        ("left-out", plain("Lines before this one could not be written.", count=(COUNT, "How many."))),
    ),
    "watch-system-events": (
        "crates/watch/shd/src/output.rs",
        '{{"event":"events-dropped","events":{dropped}}}',
        ("events-dropped", plain("Output continues after it was blocked.", events=(COUNT, "How many lines were left out."))),
    ),
}


class Changed(Exception):
    """A source has another form than is read here."""


def words_of(comments, text):
    """Doc comments as one text: links to items become names, and constants that are lists their values."""
    out = re.sub(r"\s+", " ", " ".join(comments)).strip()
    for name in re.findall(r"\[`([A-Z_]+)`\]", out):
        values = re.search(rf"const {name}: \[&str; [^\]]+\] = \[([^\]]*)\];", text)
        if values:
            out = out.replace(f"see [`{name}`]", values.group(1).strip().rstrip(",").replace('"', "`"))
    return re.sub(r"\[(`[^`]*`)\]", r"\1", out).replace("`None`", "null")


def members(body):
    """The members of a type's body: comments, attributes, and the rest of each."""
    found, comments, attributes, at = [], [], [], 0
    while at < len(body):
        rest = body[at:]
        space = re.match(r"\s+|,", rest)
        comment = re.match(r"///?[^\n]*\n", rest)
        if space:
            at += space.end()
        elif comment:
            if comment.group().startswith("///"):
                comments.append(comment.group()[3:].strip())
            at += comment.end()
        elif rest.startswith("#["):
            end = closed(body, at + 1, "[]")
            attributes.append(body[at + 2 : end - 1])
            at = end
        else:
            end = at
            while end < len(body) and body[end] != ",":
                end = closed(body, end, body[end] + {"{": "}", "(": ")", "[": "]", "<": ">"}[body[end]]) if body[end] in "{([<" else end + 1
            found.append((comments, attributes, body[at:end].strip()))
            comments, attributes, at = [], [], end
    return found


def closed(text, at, pair):
    """The place after the bracket that closes the one here; brackets in comments do not count."""
    depth = 0
    while at < len(text):
        if text.startswith("//", at):
            at = text.index("\n", at)
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        at += 1
        if depth == 0:
            return at
    raise Changed(f"no {pair[1]} closes: {text[:80]!r}")


def serde(attributes):
    """What serde's attributes say, by key."""
    said = {}
    for attribute in attributes:
        if attribute.startswith("serde("):
            for key, _, value in re.findall(r'(\w+)( = "([^"]*)")?', attribute[6:]):
                said[key] = True if not _ else value
    unknown = set(said) - {"tag", "rename_all", "rename", "with", "skip_serializing_if", "skip", "flatten", "default"}
    if unknown:
        raise Changed(f"serde({', '.join(sorted(unknown))}): scripts/schema.py has to learn it")
    return said


def in_case(name, case):
    """A variant's name as serde writes it."""
    parts = re.findall(r"[A-Z][a-z0-9]*", name)
    join = {"kebab-case": "-", "snake_case": "_", "lowercase": "", None: None}[case]
    return name if join is None else join.join(part.lower() for part in parts)


class Reader:
    """The schemas of types, and the definitions that they use."""

    def __init__(self):
        self.defs = {}

    def item(self, file, name):
        """Keyword, comments, serde's attributes, members and text of a type."""
        text = (ROOT / file).read_text(encoding="utf-8")
        head = re.search(rf"(?m)((?:^ *(?:///[^\n]*|#\[[^\n]*)\n)*)^(?:pub(?:\([a-z]+\))? )?(struct|enum) {name}(?:<[^>]*>)? \{{", text)
        if not head:
            raise Changed(f"{file}: there is no type {name}: scripts/schema.py has to learn its form")
        comments = re.findall(r"(?m)^ *///(.*)$", head.group(1))
        attributes = re.findall(r"(?m)^ *#\[(.*)\]$", head.group(1))
        if not re.search(r"\bSerialize\b", " ".join(attributes)):
            raise Changed(f"{file}: {name} is not serialized")
        end = closed(text, head.end() - 1, "{}")
        return head.group(2), words_of(comments, text), serde(attributes), members(text[head.end() : end - 1]), text

    def type_of(self, file, name):
        """The schema of a Rust type as it is written there."""
        name = re.sub(r"^&('\w+ )?", "", name.strip())
        outer = re.fullmatch(r"(Option|Vec|Box)<(.*)>", name, re.S)
        if name in SIMPLE:
            return dict(SIMPLE[name])
        if outer:
            inner = self.type_of(file, outer.group(2))
            return {"Option": or_null(inner), "Vec": {"type": "array", "items": inner}, "Box": inner}[outer.group(1)]
        if re.fullmatch(r"\[.*;.*\]", name):
            return {"type": "array", "items": self.type_of(file, name[1:].split(";")[0])}
        if name.startswith("("):
            each = [self.type_of(file, part) for part in name[1:-1].split(",")]
            return {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
        if not re.fullmatch(r"[A-Z]\w*", name):
            raise Changed(f"{file}: the type {name}: scripts/schema.py has to learn it")
        if name not in self.defs:
            self.defs[name] = {}
            self.defs[name] = self.define(ELSEWHERE.get(name, file), name)
        return {"$ref": f"#/$defs/{name}"}

    def define(self, file, name):
        keyword, description, said, parts, text = self.item(file, name)
        if keyword == "struct":
            return {"description": description, **self.fields(file, parts, text)}
        values = [in_case(value, said.get("rename_all")) for _, _, value in parts]
        meanings = [f"`{value}`: {words_of(comments, text)}" for value, (comments, _, _) in zip(values, parts)]
        if any(not re.fullmatch(r"[\w-]+", value) for value in values):
            raise Changed(f"{file}: {name} has variants with data: scripts/schema.py has to learn them")
        return {"description": f"{description} {' '.join(meanings)}", "enum": values}

    def fields(self, file, parts, text):
        """An object of these fields."""
        properties, required, renamed = {}, [], {}
        for comments, attributes, field in parts:
            name, _, kind = re.sub(r"^pub(\([a-z]+\))? ", "", field).partition(":")
            said = serde(attributes)
            if "skip" in said or "flatten" in said:
                continue
            renamed[f"`{name.strip()}`"] = f"`{said.get('rename', name.strip())}`"
            name = said.get("rename", name.strip())
            if "with" in said:
                schema = {"type": "number"}
            elif "skip_serializing_if" in said:
                inner = re.fullmatch(r"\s*Option<(.*)>\s*", kind, re.S)
                schema = self.type_of(file, inner.group(1) if inner else kind)
            else:
                schema = self.type_of(file, kind)
            meaning = words_of(comments, text)
            if not meaning:
                raise Changed(f"{file}: {name} has no comment that says what it is")
            if "with" in said:
                meaning = re.sub(*WITH[said["with"]], meaning)
            properties[name] = {**schema, "description": meaning}
            if "skip_serializing_if" not in said:
                required.append(name)
        for schema in properties.values():
            schema["description"] = re.sub(r"`\w+`", lambda name: renamed.get(name.group(), name.group()), schema["description"])
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def events(self, file, name):
        """The events of an enum: names, and objects without the fields of a line."""
        _, _, said, parts, text = self.item(file, name)
        if said.get("tag") != "event":
            raise Changed(f"{file}: {name} is not tagged by `event`")
        for comments, attributes, variant in parts:
            form = re.fullmatch(r"(\w+)\s*(?:\{(.*)\}|\((.*)\))?", variant, re.S)
            event = serde(attributes).get("rename", in_case(form.group(1), said.get("rename_all")))
            if form.group(3):
                kind = re.sub(r"^Box<(.*)>$", r"\1", form.group(3).strip())
                _, _, _, inner, whole = self.item(ELSEWHERE.get(kind, file), kind)
                schema = self.fields(ELSEWHERE.get(kind, file), inner, whole)
            else:
                schema = self.fields(file, members((form.group(2) or "") + "\n"), text)
            yield event, {"description": words_of(comments, text), **schema}


def lines(reader, enum, line, names=None):
    """The events of an enum, with the fields of a line."""
    events = [event for event in reader.events(*enum) if names is None or event[0] in names]
    if line:
        _, _, _, parts, text = reader.item(*line)
        common = reader.fields(line[0], parts, text)
        for event, schema in events:
            for field, of in common["properties"].items():
                only = ONLY_OF.get((line[0], field))
                if only is None or event in only:
                    schema["properties"][field] = of
                if field in common["required"] or (only and event in only):
                    schema["required"].append(field)
    return events


def stream(name, command, enums):
    """The schema of a stream of events."""
    reader = Reader()
    events = [event for enum in enums for event in lines(reader, *enum)]
    if name in UNTYPED:
        source, proof, event = UNTYPED[name]
        if proof not in (ROOT / source).read_text(encoding="utf-8"):
            raise Changed(f"{source}: no longer writes {event[0]}: scripts/schema.py has to learn its form")
        events.append(event)
    for event, schema in events:
        schema["properties"] = {"event": {"const": event}, **schema["properties"]}
        schema["required"] = ["event", *schema["required"]]
    whole = {"$schema": DIALECT, "title": f"A line of {command}", "oneOf": [schema for _, schema in events]}
    return {**whole, "$defs": reader.defs} if reader.defs else whole


def schemas():
    """All schemas by the names of their files, with the command of each."""
    made = {row[0]: (row[1], stream(*row)) for row in STREAMS}
    for name, (command, schema, defs) in PLAIN.items():
        made[name] = (command, {"$schema": DIALECT, "title": f"What {command} prints", **schema, "$defs": defs})
    return made


def shown(schema):
    """A schema's type for the page."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return f"{shown(schema['anyOf'][0])} or null"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "prefixItems" in schema:
        return "[" + ", ".join(shown(each) for each in schema["prefixItems"]) + "]"
    if schema["type"] == "array":
        return f"list of {shown(schema['items'])}"
    return schema["type"]


def table(schema, others=()):
    """An object's fields for the page, but for these."""
    rows = "".join(
        f"| `{name}` | {shown(field)}{'' if name in schema['required'] else ', may be missing'} | {field['description']} |\n"
        for name, field in schema["properties"].items()
        if "const" not in field and name not in others
    )
    return f"| field | type | is |\n|---|---|---|\n{rows}" if rows else ""


def part(title, schema, others=()):
    return f"### {title}\n\n{schema['description']}\n\n{table(schema, others)}".rstrip() + "\n\n"


def common(name, events):
    """The names of the fields that all events have with one meaning, but for the event without a type."""
    untyped = UNTYPED[name][2][0] if name in UNTYPED else None
    typed = [event["properties"] for event in events if event["properties"]["event"]["const"] != untyped]
    return [name for name, field in typed[0].items() if name != "event" and all(event.get(name) == field for event in typed)]


def page(made):
    """The page of all schemas."""
    commands = "".join(f"$ {command}\n" for command, _ in made.values())
    out = f"""# Events and states in JSON

```
{commands}```

Each line is an object; `event` says which. Fields are those of the table, and no others. Later versions may add fields and events: a
reader ignores what it does not know. The schemas below say the same for programs.

Generated by `scripts/schema.py` from the types: do not edit.

"""
    for name, (command, schema) in made.items():
        out += f"## {command}\n\n[{name}.json](schema/{name}.json)\n\n"
        if "oneOf" in schema:
            events = schema["oneOf"]
            others = common(name, events)
            if others:
                everywhere = table({**events[0], "properties": {name: events[0]["properties"][name] for name in others}})
                lacking = [event["properties"]["event"]["const"] for event in events if not set(others) <= set(event["properties"])]
                but = " but " + ", ".join(f"`{name}`" for name in lacking) if lacking else ""
                out += f"In each line{but}:\n\n{everywhere}\n"
            for event in events:
                out += part(f"`{event['properties']['event']['const']}`", event, others)
        else:
            out += f"{schema['description']}\n\n{table(schema)}\n"
        for title, definition in schema.get("$defs", {}).items():
            out += part(title, definition) if "properties" in definition else f"### {title}\n\n{definition['description']}\n\n"
    return out.rstrip() + "\n"


def files():
    """What each file has to be."""
    made = schemas()
    out = {FOLDER / f"{name}.json": json.dumps(schema, indent=1) + "\n" for name, (_, schema) in made.items()}
    return {**out, PAGE: page(made)}


def judge():
    """What is wrong with the files that are in the tree, as sentences."""
    try:
        wanted = files()
    except Changed as why:
        return [str(why)]
    is_right = lambda path, text: path.exists() and path.read_text(encoding="utf-8") == text
    wrong = [f"{path.relative_to(ROOT)}: the types say something else: run scripts/schema.py" for path, text in wanted.items() if not is_right(path, text)]
    return wrong + [f"{path.relative_to(ROOT)}: nothing makes it" for path in sorted(FOLDER.glob("*")) if path not in wanted]


def main():
    try:
        wanted = files()
    except Changed as why:
        print(why)
        return 1
    FOLDER.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
