//! Finds common slips that make a file invalid TOML: an unclosed bracket or quote, a name without
//! quotes. The TOML parser notices most of them lines later, or describes them in terms of its grammar.
//! So when it rejects a text, this scans the text from the start and reports the first slip where it
//! was made, with the remedy.

use toml::de::DeValue;
use volume::config::ConfigError;

/// Prefixes of names that always need quotes.
const NAMES: [&str; 3] = ["iqn.", "eui.", "naa."];
/// How the table headers of a configuration begin.
const TABLES: [&str; 4] = ["volume.", "target.", "limits]", "discovery]"];
/// What ends an unquoted value.
const ENDS: &[char] = &[',', ']', '}', '#', ';'];

/// The first slip in a text that is not TOML, if it is a known one.
pub(super) fn find(text: &str) -> Option<ConfigError> {
    // A byte order mark is not part of the text.
    let begin = if text.starts_with('\u{feff}') { 3 } else { 0 };
    let mut scan = Scan {
        text,
        at: begin,
        open: Vec::new(),
        is_value: false,
    };
    match scan.foreign_format() {
        Some(slip) => Some(slip),
        None => scan.run().err(),
    }
}

/// A bracket that has not been closed yet.
struct Open {
    at: usize,
    bracket: char,
    is_header: bool,
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    /// Outermost first.
    open: Vec<Open>,
    /// Whether a value is expected: after `=`, or in a list.
    is_value: bool,
}

type Scanned = Result<(), ConfigError>;

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The rest of the line.
    fn line(&self) -> &'a str {
        self.rest().lines().next().unwrap_or_default()
    }

    /// An error at byte `at`.
    fn slip<T>(at: usize, message: impl Into<String>) -> Result<T, ConfigError> {
        Err(ConfigError::new(at..at + 1, message))
    }

    /// Detects JSON and YAML by their first line.
    fn foreign_format(&self) -> Option<ConfigError> {
        let toml =
            "a configuration is TOML, with tables as [volume.NAME] and settings as KEY = VALUE";
        let mut at = self.at;
        for line in self.rest().split_inclusive('\n') {
            let text = line.trim();
            let start = at + line.len() - line.trim_start().len();
            at += line.len();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let is_key = |key: &str| !key.is_empty() && key.chars().all(is_bare);
            let what = match text {
                "---" => "YAML",
                _ if text.starts_with('{') => "JSON",
                _ if text.strip_suffix(':').is_some_and(is_key) => "YAML",
                _ => return None,
            };
            return Some(ConfigError::new(
                start..start + 1,
                format!("this looks like {what}; {toml}"),
            ));
        }
        None
    }

    fn run(&mut self) -> Scanned {
        let mut begins_line = true;
        while let Some(next) = self.rest().chars().next() {
            if begins_line && next != '\n' {
                self.line_begins()?;
            }
            let was_line_start = begins_line;
            begins_line = next == '\n' || begins_line && next.is_whitespace();
            match next {
                '\n' => self.line_ends()?,
                '#' => {
                    self.at += self.line().len();
                    continue;
                }
                '"' | '\'' => {
                    self.string(next)?;
                    self.is_value = false;
                    continue;
                }
                '“' | '”' | '„' | '‘' | '’' | '«' | '»' => {
                    let message = format!("{next} is a typographic quote; write a plain one: \"");
                    return Self::slip(self.at, message);
                }
                '[' | '{' => self.opens(next, was_line_start)?,
                ']' | '}' => self.closes(next)?,
                '=' => self.is_value = true,
                ',' => self.is_value = self.open.last().is_some_and(|open| open.bracket == '['),
                ';' => {
                    return Self::slip(
                        self.at,
                        "TOML has no ; at the end of a line; remove it (a comment begins with #)",
                    );
                }
                next if next.is_control() && !next.is_whitespace() => {
                    return Self::slip(
                        self.at,
                        format!(
                            "the character {next:?} is not allowed here; save the file as plain UTF-8 \
                             text"
                        ),
                    );
                }
                next if !next.is_whitespace() => {
                    self.word()?;
                    continue;
                }
                _ => {}
            }
            self.at += next.len_utf8();
        }
        self.line_ends()?;
        match self.open.last() {
            Some(open) => Self::unclosed(open),
            None => Ok(()),
        }
    }

    fn unclosed<T>(open: &Open) -> Result<T, ConfigError> {
        let (bracket, missing) = (open.bracket, closing(open.bracket));
        let message = match open.is_header {
            true => format!(
                "this {bracket} has no {missing} on its line; write [volume.NAME] or [target.\"NAME\"]"
            ),
            false => format!("this {bracket} is never closed; write its {missing}"),
        };
        Self::slip(open.at, message)
    }

    /// At the first character of a line: reports brackets that should have been closed before it,
    /// and syntax of other languages.
    fn line_begins(&mut self) -> Scanned {
        let line = self.line().trim_end();
        let text = line.trim_start();
        let at = self.at + line.len() - text.len();
        if text.starts_with("//") {
            return Self::slip(at, "a comment begins with #, not with //");
        }
        if text.starts_with(';') {
            return Self::slip(at, "a comment begins with #, not with ;");
        }
        let behind_key = text.trim_start_matches(is_bare);
        let has_key = behind_key.len() < text.len();
        let behind_key = behind_key.trim_start();
        match self.open.last() {
            // A setting or a table begins inside an open list, so the bracket was never closed.
            Some(open) if open.bracket == '[' && has_key && behind_key.starts_with('=') => {
                Self::unclosed(open)
            }
            Some(open) if is_header(text) || open.bracket == '{' && text.starts_with('[') => {
                Self::unclosed(open)
            }
            None if has_key && behind_key.starts_with(':') => {
                let key = &text[..text.len() - text.trim_start_matches(is_bare).len()];
                let colon = at + text.len() - behind_key.len();
                Self::slip(
                    colon,
                    format!("a value follows =, not a colon; write {key} = …"),
                )
            }
            _ => Ok(()),
        }
    }

    /// At the end of a line or of the text.
    fn line_ends(&mut self) -> Scanned {
        match self.open.last() {
            Some(open) if open.is_header => Self::unclosed(open),
            Some(_) => Ok(()),
            None => {
                self.is_value = false;
                Ok(())
            }
        }
    }

    fn opens(&mut self, bracket: char, begins_line: bool) -> Scanned {
        let inside_header = self.open.last().is_some_and(|open| open.is_header);
        let is_header = bracket == '[' && (self.open.is_empty() && begins_line || inside_header);
        self.open.push(Open {
            at: self.at,
            bracket,
            is_header,
        });
        self.is_value = bracket == '[' && !is_header;
        Ok(())
    }

    fn closes(&mut self, bracket: char) -> Scanned {
        let Some(open) = self.open.pop() else {
            let message = format!("this {bracket} closes nothing; remove it");
            return Self::slip(self.at, message);
        };
        if closing(open.bracket) != bracket {
            let line = 1 + self.text[..self.at].matches('\n').count();
            let message = format!(
                "this {} is not closed before the {bracket} on line {line}; write its {}",
                open.bracket,
                closing(open.bracket)
            );
            return Self::slip(open.at, message);
        }
        self.is_value = false;
        if !open.is_header {
            return Ok(());
        }
        let behind = self.rest()[1..].lines().next().unwrap_or_default();
        let text = behind.trim_start();
        match text.chars().next() {
            Some('=') => {
                let at = self.at + 1 + behind.len() - text.len();
                Self::slip(
                    at,
                    "a table's [name] stands alone on its line; remove the =",
                )
            }
            _ => Ok(()),
        }
    }

    /// Skips to the end of a string.
    fn string(&mut self, quote: char) -> Scanned {
        let long = match quote {
            '"' => "\"\"\"",
            _ => "'''",
        };
        let (rest, start) = (self.rest(), self.at);
        if let Some(inside) = rest.strip_prefix(long) {
            let Some(len) = inside.find(long) else {
                return Self::slip(
                    start,
                    format!("this {long} is never closed; write it again at the end"),
                );
            };
            self.at += len + 2 * long.len();
            return Ok(());
        }
        let mut escaped = false;
        for (index, c) in rest.char_indices().skip(1) {
            match c {
                '\n' => break,
                _ if escaped => {
                    if !"btnfre\"\\xuU".contains(c) {
                        return Self::slip(
                            start + index - 1,
                            "write a \\ in \"…\" as \\\\, or put the text in '…'",
                        );
                    }
                    escaped = false;
                }
                '\\' if quote == '"' => escaped = true,
                c if c == quote => {
                    self.at += index + 1;
                    return Ok(());
                }
                _ => {}
            }
        }
        Self::slip(
            start,
            format!("this text has no closing {quote}; write one on the same line"),
        )
    }

    /// A word without quotes: a part of a key, a number, `true`, or something that should be quoted.
    fn word(&mut self) -> Scanned {
        let (rest, start) = (self.rest(), self.at);
        let is_header = self.open.last().is_some_and(|open| open.is_header);
        let begins = |at: usize| NAMES.iter().any(|prefix| rest[at..].starts_with(prefix));
        let len = rest
            .find(|c: char| c.is_whitespace() || ENDS.contains(&c) || "=[{\"'".contains(c))
            .unwrap_or(rest.len());
        let word = &rest[..len];
        let name = match word.strip_prefix("target.") {
            Some(name) if is_header && begins(word.len() - name.len()) => Some(name),
            _ if begins(0) => Some(word),
            _ => None,
        };
        if let Some(name) = name {
            let at = start + len - name.len();
            let message = match is_header {
                true => format!("put the name in quotes: [target.\"{name}\"]"),
                false => format!("put the name in quotes: \"{name}\""),
            };
            return Self::slip(at, message);
        }
        self.at += len;
        if is_header {
            let behind = self.line().trim_start();
            if behind.starts_with(is_bare) {
                let part = behind.trim_end().trim_end_matches(']');
                let message = format!(
                    "a table's name has no spaces in it; write [{word}.{part}] or [{word}-{part}]"
                );
                return Self::slip(start, message);
            }
        }
        if std::mem::take(&mut self.is_value) && DeValue::parse(word).is_err() {
            let message = match word.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" => format!("write true instead of {word}"),
                "false" | "no" | "off" => format!("write false instead of {word}"),
                _ => format!("text needs quotes; write \"{word}\""),
            };
            return Self::slip(start, message);
        }
        Ok(())
    }
}

fn closing(bracket: char) -> char {
    match bracket {
        '[' => ']',
        _ => '}',
    }
}

/// What a key may contain without quotes, and the dots between its parts.
fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}

/// Whether a line is a table header.
fn is_header(line: &str) -> bool {
    let name = line.strip_prefix('[').map(str::trim_start);
    name.is_some_and(|name| TABLES.iter().any(|table| name.starts_with(table)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slip found in `text`, as `LINE:COLUMN: message`.
    fn found(text: &str) -> String {
        let slip = find(text).unwrap_or_else(|| panic!("nothing is found in\n{text}"));
        let (line, column) = slip.line_column(text).expect("a place");
        format!("{line}:{column}: {}", slip.message())
    }

    #[test]
    fn a_bracket_that_is_not_closed_is_named_where_it_was_opened() {
        for (text, said) in [
            (
                "[target.\"t\"]\nluns = [\"db\"\nallow = [\"*\"]\n",
                "2:8: this [ is never closed; write its ]",
            ),
            (
                "[volume.a]\nfile = { path = \"a\"\n\n[target.\"t\"]\nluns = [\"a\"]\n",
                "2:8: this { is never closed; write its }",
            ),
            (
                "[target.\"t\"]\nallow = [\"*\"\n\n[volume.a]\n",
                "2:9: this [ is never closed; write its ]",
            ),
            (
                "a = [\n  { b = { c = \"]\" }, # }\n  { b = { c = '}' } },\n]\n",
                "2:3: this { is not closed before the ] on line 4; write its }",
            ),
            (
                "a = { b = [1, 2 }\n",
                "1:11: this [ is not closed before the } on line 1; write its ]",
            ),
            (
                "[volume.a\nram = { size = \"1MiB\" }\n",
                "1:1: this [ has no ] on its line; write [volume.NAME] or [target.\"NAME\"]",
            ),
            ("a = [1]]\n", "1:8: this ] closes nothing; remove it"),
            ("a = [1\n", "1:5: this [ is never closed; write its ]"),
        ] {
            assert_eq!(found(text), said, "{text}");
        }
    }

    #[test]
    fn what_lacks_its_quotes_is_quoted() {
        for (text, said) in [
            (
                "[target.iqn.2026-11.io.sanstone:t0]\n",
                "1:9: put the name in quotes: [target.\"iqn.2026-11.io.sanstone:t0\"]",
            ),
            (
                "allow = [iqn.1993-08.org.debian:01:a_b, \"*\"]\n",
                "1:10: put the name in quotes: \"iqn.1993-08.org.debian:01:a_b\"",
            ),
            (
                "file = { path = \"a\", size = 1GiB }\n",
                "1:29: text needs quotes; write \"1GiB\"",
            ),
            ("luns = [db]\n", "1:9: text needs quotes; write \"db\""),
            ("digests = no\n", "1:11: write false instead of no"),
            ("digests = True # yes\n", "1:11: write true instead of True"),
            (
                "path = \"a.img\nsize = \"1MiB\"\n",
                "1:8: this text has no closing \"; write one on the same line",
            ),
            (
                "path = “a.img”\n",
                "1:8: “ is a typographic quote; write a plain one: \"",
            ),
            (
                "path = \"C:\\data\"\n",
                "1:11: write a \\ in \"…\" as \\\\, or put the text in '…'",
            ),
            (
                "a = \"\"\"\nb\n",
                "1:5: this \"\"\" is never closed; write it again at the end",
            ),
        ] {
            assert_eq!(found(text), said, "{text}");
        }
    }

    #[test]
    fn what_other_languages_write_is_recognised() {
        for (text, said) in [
            ("# a\n{ \"volume\": {} }\n", "2:1: this looks like JSON; "),
            ("volume:\n  db:\n", "1:1: this looks like YAML; "),
            (
                "[volume.a]\nfile: { path = \"a\" }\n",
                "2:5: a value follows =, not a colon; write file = …",
            ),
            (
                "// a\nlanes = 1\n",
                "1:1: a comment begins with #, not with //",
            ),
            (
                "lanes = 1;\n",
                "1:10: TOML has no ; at the end of a line; remove it",
            ),
            (
                "[volume.a] = 1\n",
                "1:12: a table's [name] stands alone on its line; remove the =",
            ),
            (
                "[volume a]\n",
                "1:2: a table's name has no spaces in it; write [volume.a] or [volume-a]",
            ),
            (
                "lanes = 1\n\0",
                "2:1: the character '\\0' is not allowed here; ",
            ),
        ] {
            let found = found(text);
            assert!(found.starts_with(said), "{text}: {found}");
        }
    }

    #[test]
    fn what_is_written_well_is_not_blamed() {
        let text = "\u{feff}# it's ] fine\r\nlanes = 4 # [\r\n[volume.a]\r\nram = { size = '1MiB', block_size = 512 }\r\n\
             [volume.\"b.c\"]\nstripe = { of = [\n  \"a\", # {\n  { file = {\n    path = \"x\\\"]\",\n    size = \"1GiB\" } },\n] }\n\
             x = [[1, 2],\n[3]]\ny = [1.5, true, 1979-05-27, 0x1f, -3]\nz = \"\"\"\n[ { \"\"\"\n";
        assert_eq!(find(text), None);
    }
}
