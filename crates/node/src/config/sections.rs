//! Deserialises a TOML document table by table: each volume, target and daemon setting is read
//! separately, so that an error in one does not hide errors in the others.

use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};
use volume::config::{BlockSize, ConfigError, Kind, Node, NodeForm, Ram, Size};

use super::{ConfigFile, initiator, syntax};

/// The settings that belong above all tables.
const ABOVE: [&str; 8] = [
    "state",
    "memory",
    "connections",
    "lanes",
    "wait",
    "ping_interval",
    "peer_timeout",
    "digests",
];

/// The tables.
const TABLES: [&str; 5] = ["limits", "discovery", initiator::TABLE, "volume", "target"];

type SpannedKey<'a> = Spanned<std::borrow::Cow<'a, str>>;

/// What could be read of a document, and the errors.
pub(super) struct Sections {
    /// Volumes that could not be read are replaced by RAM volumes, so that references to them resolve.
    pub(super) file: ConfigFile,
    pub(super) errors: Vec<ConfigError>,
}

/// Reads a document.
///
/// # Errors
/// If it is not TOML.
pub(super) fn read(text: &str) -> Result<Sections, ConfigError> {
    let mut root = DeTable::parse(text).map_err(|error| syntax::not_toml(text, &error))?;
    let whole = root.span();
    let mut errors = Vec::new();
    name_sections(root.get_mut(), &mut errors);
    take_misplaced(root.get_mut(), &mut errors);
    give_common(root.get_mut(), &mut errors);

    let mut good = DeTable::new();
    let mut unread = Vec::new();
    for (key, value) in root.into_inner() {
        let span = value.span();
        let section = key.get_ref().clone();
        match value.into_inner() {
            DeValue::Table(entries) if matches!(&*section, "volume" | "target") => {
                let mut read = DeTable::new();
                for (name, entry) in entries {
                    let alone = DeTable::from_iter([(name.clone(), entry)]);
                    let alone = Spanned::new(span.clone(), DeValue::Table(alone));
                    let mut alone = DeTable::from_iter([(key.clone(), alone)]);
                    if is_readable(&mut alone, &mut errors) {
                        let section = alone.get_mut(&key).and_then(inner_table);
                        read.extend(section.map(std::mem::take).into_iter().flatten());
                    } else if section == "volume" {
                        unread.push(name);
                    }
                }
                good.insert(key, Spanned::new(span, DeValue::Table(read)));
            }
            value => {
                let mut alone = DeTable::from_iter([(key, Spanned::new(span, value))]);
                if is_readable(&mut alone, &mut errors) {
                    good.extend(alone);
                }
            }
        }
    }
    let mut file = file_of(Spanned::new(whole, good)).map_err(|error| syntax::explain(&error))?;
    for name in unread {
        let node = unread_volume(&name);
        let volumes = &mut file.volume.0;
        volumes
            .entry(name.into_inner().into_owned())
            .or_insert(node);
    }
    Ok(Sections { file, errors })
}

/// Gives remote disks what they have in common. What is wrong with it is said once, and not for each of them.
fn give_common<'a>(root: &mut DeTable<'a>, errors: &mut Vec<ConfigError>) {
    let is_common = |key: &&SpannedKey<'a>| key.get_ref() == initiator::TABLE;
    let Some(key) = root.keys().find(is_common).cloned() else {
        return;
    };
    let Some(common) = root.remove(&key) else {
        return;
    };
    let mut alone = DeTable::from_iter([(key.clone(), common)]);
    if !is_readable(&mut alone, errors) {
        return;
    }
    let common = alone.get_mut(&key).and_then(inner_table);
    let volumes = root.get_mut("volume").and_then(inner_table);
    if let (Some(common), Some(volumes)) = (common, volumes) {
        initiator::give(volumes, common);
    }
}

fn file_of(table: Spanned<DeTable<'_>>) -> Result<ConfigFile, toml::de::Error> {
    ConfigFile::deserialize(Deserializer::from(table))
}

/// Collects the errors in a document; returns whether the rest of it can be read. An unknown key is
/// treated as the key that was probably meant, or dropped.
fn is_readable(table: &mut DeTable<'_>, errors: &mut Vec<ConfigError>) -> bool {
    while let Err(error) = file_of(Spanned::new(0..0, table.clone())) {
        errors.push(syntax::explain(&error));
        let meant = syntax::unknown_key(error.message()).map(|(_, meant)| meant);
        let place = error.span().zip(meant);
        if !place.is_some_and(|(place, meant)| mend_key(table, place.start, meant)) {
            return false;
        }
    }
    true
}

/// Removes the key at byte `at` from a table or a nested one, and gives its value to the key that was
/// meant. If both exist, tables are merged.
fn mend_key(table: &mut DeTable<'_>, at: usize, meant: Option<&str>) -> bool {
    let keys: Vec<SpannedKey<'_>> = table.keys().cloned().collect();
    for key in keys {
        if key.span().start == at {
            rename(table, &key, meant);
            return true;
        }
        let inside = table.get_mut(&key).and_then(inner_table);
        if inside.is_some_and(|inside| mend_key(inside, at, meant)) {
            return true;
        }
    }
    false
}

fn rename<'a>(table: &mut DeTable<'a>, key: &SpannedKey<'a>, to: Option<&str>) {
    let Some((to, mut value)) = to.zip(table.remove(key)) else {
        return;
    };
    let to = Spanned::new(key.span(), to.to_owned().into());
    match table.get_mut(&to) {
        None => drop(table.insert(to, value)),
        Some(there) => {
            // `[volumes.b]` beside `[volume.a]`
            if let (Some(there), Some(more)) = (inner_table(there), inner_table(&mut value)) {
                there.extend(std::mem::take(more));
            }
        }
    }
}

/// Reports unknown keys above the tables, and unknown first parts of table names.
fn name_sections(root: &mut DeTable<'_>, errors: &mut Vec<ConfigError>) {
    let known: Vec<&str> = ABOVE.iter().chain(&TABLES).copied().collect();
    for key in root.keys().cloned().collect::<Vec<_>>() {
        let name = key.get_ref().as_ref();
        if !known.contains(&name) {
            let (message, meant) = syntax::explain_key(name, &known);
            errors.push(ConfigError::new(key.span(), message));
            rename(root, &key, meant);
        }
    }
}

fn inner_table<'a, 'i>(value: &'a mut Spanned<DeValue<'i>>) -> Option<&'a mut DeTable<'i>> {
    match value.get_mut() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

/// Removes settings that belong above all tables from within tables, and targets with unquoted names; reports both.
fn take_misplaced(root: &mut DeTable<'_>, errors: &mut Vec<ConfigError>) {
    let keys: Vec<SpannedKey<'_>> = root.keys().cloned().collect();
    for section in keys {
        let Some(entries) = root.get_mut(&section).and_then(inner_table) else {
            continue;
        };
        match section.get_ref().as_ref() {
            "target" => {
                for name in entries.keys().cloned().collect::<Vec<_>>() {
                    let is_format = matches!(name.get_ref().as_ref(), "iqn" | "eui" | "naa");
                    let table = entries.get_mut(&name).and_then(inner_table);
                    if let (true, Some(table)) = (is_format, table) {
                        let message = format!(
                            "put the name in quotes: [target.\"{}\"]",
                            dotted(name.get_ref(), table)
                        );
                        errors.push(ConfigError::new(name.span(), message));
                        entries.remove(&name);
                    }
                }
                take_misplaced_within(entries, "target", errors);
            }
            "volume" => take_misplaced_within(entries, "volume", errors),
            name => take_settings(entries, name, errors),
        }
    }
}

fn take_misplaced_within(entries: &mut DeTable<'_>, section: &str, errors: &mut Vec<ConfigError>) {
    for name in entries.keys().cloned().collect::<Vec<_>>() {
        if let Some(table) = entries.get_mut(&name).and_then(inner_table) {
            let shown = match section {
                "target" => format!("target.\"{}\"", name.get_ref()),
                _ => format!("{section}.{}", name.get_ref()),
            };
            take_settings(table, &shown, errors);
        }
    }
}

/// Removes the daemon's settings from a table and from nested ones.
fn take_settings(table: &mut DeTable<'_>, shown: &str, errors: &mut Vec<ConfigError>) {
    for key in table.keys().cloned().collect::<Vec<_>>() {
        if ABOVE.contains(&key.get_ref().as_ref()) {
            let message = format!(
                "{} belongs above the first [table]: here it is a setting of [{shown}]; move the line to the \
                 beginning of the file",
                key.get_ref()
            );
            errors.push(ConfigError::new(key.span(), message));
            table.remove(&key);
        } else if matches!(key.get_ref().as_ref(), "limits" | "discovery") {
            let key_text = key.get_ref();
            let message = format!(
                "{key_text} belongs above the first [table], or in a table [{key_text}] of its own: here it \
                 is a setting of [{shown}]; move it there"
            );
            errors.push(ConfigError::new(key.span(), message));
            table.remove(&key);
        } else if let Some(inside) = table.get_mut(&key).and_then(inner_table) {
            take_settings(inside, shown, errors);
        }
    }
}

/// Reassembles a name that was parsed as nested tables because it lacks quotes.
fn dotted(first: &str, table: &DeTable<'_>) -> String {
    let mut name = first.to_owned();
    let mut inside = table;
    while let (Some((key, value)), 1) = (inside.iter().next(), inside.len()) {
        let DeValue::Table(next) = value.get_ref() else {
            break;
        };
        name = format!("{name}.{}", key.get_ref());
        inside = next;
    }
    name
}

/// A placeholder for a volume that could not be read.
fn unread_volume(name: &SpannedKey<'_>) -> Node {
    let ram = Ram {
        size: Spanned::new(name.span(), Size::from_bytes(1 << 20)),
        block_size: BlockSize::default(),
    };
    Node {
        span: name.span(),
        what: NodeForm::Inline(Box::new(Kind::Ram(ram))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors in `text`, each as `LINE: message`.
    fn wrong(text: &str) -> Vec<String> {
        let sections = read(text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
        let shown = |error: &ConfigError| {
            let (line, _) = error.line_column(text).expect("a place");
            format!("{line}: {}", error.message())
        };
        sections.errors.iter().map(shown).collect()
    }

    #[test]
    fn each_table_is_read_by_itself() {
        let text = "lanes = \"two\"\n[volume.a]\nramm = { size = \"1MiB\" }\n[volume.b]\n\
             ram = { sise = \"1MiB\", colour = 1 }\n[volume.c]\nram = { size = \"1MiB\" }\n\
             [target.\"t\"]\n\nluns = [\"a\"]\nallow = \"*\"\n[colours]\nred = 1\n[targets.u]\n\
             lun = [\"c\"]\nvip = 1\nallow = [\"*\"]\n";
        let wrong = wrong(text);
        for begin in [
            "1: invalid type: string \"two\"",
            "3: \"ramm\" is not a kind of volume",
            "5: unknown key `sise`",
            "5: unknown key `colour`",
            "11: invalid type: string \"*\"",
            "12: unknown key `colours`",
            "14: unknown key `targets`; write `target`",
            "15: unknown key `lun`; write `luns`",
            "16: unknown key `vip`",
        ] {
            assert!(
                wrong.iter().any(|said| said.starts_with(begin)),
                "{begin}: {wrong:#?}"
            );
        }
        assert_eq!(wrong.len(), 9, "{wrong:#?}");
        let file = read(text).unwrap_or_else(|error| panic!("{error}")).file;
        assert!(file.volume.0.contains_key("a"), "whoever names it finds it");
        let targets: Vec<&str> = file
            .target
            .keys()
            .map(|name| name.get_ref().as_str())
            .collect();
        assert_eq!(targets, ["u"], "what has unknown keys only can be read");
    }

    #[test]
    fn a_setting_of_the_daemon_in_a_table_is_sent_above_the_first_one() {
        for (text, table) in [
            (
                "[volume.a]\nram = { size = \"1MiB\" }\nmemory = \"64MiB\"\n",
                "[volume.a]",
            ),
            (
                "[volume.a.ram]\nsize = \"1MiB\"\nmemory = \"64MiB\"\n",
                "[volume.a]",
            ),
            (
                "[target.\"iqn.x:y\"]\nluns = []\nlanes = 2\nallow = [\"*\"]\n",
                "[target.\"iqn.x:y\"]",
            ),
            ("[limits]\nlogins = 9\ndigests = false\n", "[limits]"),
        ] {
            let wrong = wrong(text);
            assert_eq!(wrong.len(), 1, "{text}: {wrong:#?}");
            assert!(
                wrong[0].starts_with("3: ")
                    && wrong[0].contains(" belongs above the first [table]: ")
                    && wrong[0].contains(table),
                "{wrong:#?}"
            );
        }
        for text in [
            "[target.\"iqn.x:y\"]\nluns = []\nlimits = { logins = 9 }\nallow = []\n",
            "[target.\"iqn.x:y\"]\nallow = []\n[target.\"iqn.x:y\".limits]\nlogins = 9\n",
        ] {
            let wrong = wrong(text);
            assert!(
                wrong.len() == 1
                    && wrong[0].starts_with("3: limits belongs above the first [table]"),
                "{wrong:#?}"
            );
        }
        assert_eq!(
            wrong("[volume.memory]\nram = { size = \"1MiB\" }\n"),
            [""; 0]
        );
    }

    #[test]
    fn remote_disks_have_what_is_common_to_them_unless_they_write_it_themselves() {
        let url = |letter: char| format!("url = \"iscsi://10.0.0.1/iqn.x:{letter}/0\"");
        let text = format!(
            "[initiator]\nname = \"iqn.x:host\"\nrequest_timeout = \"9s\"\nchap = {{ user = \"u\", secret_file = \"s\" }}\n\
             [volume.a.iscsi]\n{}\n[volume.iscsi]\nstripe = {{ of = [\n  {{ iscsi = {{ {}, initiator = \"iqn.x:other\" }} }},\n  \"a\",\n] }}\n",
            url('a'),
            url('b')
        );
        let sections = read(&text).expect("TOML");
        assert!(sections.errors.is_empty(), "{:?}", sections.errors);
        let login = |node: &Node| match &node.what {
            NodeForm::Inline(kind) => kind.login(),
            NodeForm::Named(_) => None,
        };
        let nodes = sections.file.volume.0.values().flat_map(Node::all);
        let logins: Vec<_> = nodes.filter_map(login).collect();
        let line = |letter: char, name: &str| {
            format!(
                "iscsi://10.0.0.1:3260/iqn.x:{letter}/0 as iqn.x:{name}, CHAP as \"u\", by 10.0.0.1:3260"
            )
        };
        assert_eq!(logins, [line('a', "host"), line('b', "other")]);
        for (slip, said) in [
            (
                "chapp = { user = \"u\", secret_file = \"s\" }",
                "2: unknown key `chapp`; write `chap`",
            ),
            (
                "url = \"iscsi://a/iqn.x:y/0\"",
                "2: unknown key `url`; the keys here are ",
            ),
            ("request_timeout = 9", "2: "),
        ] {
            let volumes = "[volume.a.iscsi]\nurl = \"iscsi://a/iqn.x:a/0\"\n[volume.b.iscsi]\nurl = \"iscsi://a/iqn.x:b/0\"\n";
            let wrong = wrong(&format!("[initiator]\n{slip}\n{volumes}"));
            assert!(wrong.len() == 1 && wrong[0].starts_with(said), "{wrong:#?}");
        }
    }

    #[test]
    fn a_name_whose_dots_have_made_tables_gets_its_quotes() {
        let text = "[target.iqn.2026-11.io.sanstone]\nluns = [\"a\"]\nallow = [\"*\"]\n";
        assert_eq!(
            wrong(text),
            ["1: put the name in quotes: [target.\"iqn.2026-11.io.sanstone\"]"]
        );
    }
    #[test]
    fn every_slip_of_one_character_has_its_place() {
        let text = "memory = \"64MiB\" # größer\n[volume.a]\nfile = { path = 'a', size = \"1MiB\" }\n\
             [volume.b]\nstripe = { of = [\n  \"a\", { ram = { size = \"1MiB\" } },\n] }\n\
             [target.\"iqn.x:y\"]\nluns = { 0 = \"b\" }\nallow = [\"*\"]\n[limits]\nlogins = 9\n";
        let put_in = [
            "", "[", "]", "{", "}", "\"", "'", "“", "\\", "#", "=", ",", ":", ".", "\n", "\0", "x",
        ];
        let mut refused = 0;
        for (at, character) in text.char_indices() {
            let (before, after) = (&text[..at], &text[at + character.len_utf8()..]);
            for put_in in put_in {
                for kept in [character.to_string(), String::new()] {
                    let slip = format!("{before}{put_in}{kept}{after}");
                    let errors = match read(&slip) {
                        Ok(sections) => sections.errors,
                        Err(error) => vec![error],
                    };
                    refused += errors.len();
                    for error in errors {
                        assert!(error.line_column(&slip).is_some(), "{error} in\n{slip}");
                    }
                }
            }
            drop(read(before));
        }
        assert!(refused > 1000, "{refused}");
    }
}
