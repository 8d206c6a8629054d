//! What differs in a new configuration, and which of the changes are impossible while serving.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use engine::{blocking, store};
use front_iscsi::Chap;
use volume::{
    config::{ConfigError, Node, NodeForm},
    graph::Changes,
};

use crate::{
    DaemonFailure, StateError,
    changed::{ConfigChange, LunOf, Refused, Warning},
    config::{Config, LunEntry, TargetTable},
    written::Written,
};

/// A configuration being served, with the secrets as they were when it was loaded.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) config: Config,
    pub(crate) targets: Vec<TargetTable>,
    pub(crate) discovery: Option<Arc<Chap>>,
}

impl Served {
    /// Reads the secrets of `config`.
    ///
    /// # Errors
    /// Errors in the configuration.
    pub(crate) fn new(config: Config) -> Result<Served, DaemonFailure> {
        let wrong = |error: ConfigError| config.wrong(&error);
        let targets = config.targets().map_err(wrong)?;
        let discovery = config.discovery().map_err(wrong)?;
        Ok(Served {
            config,
            targets,
            discovery,
        })
    }

    /// The volumes that targets serve.
    pub(crate) fn volumes(&self) -> BTreeSet<String> {
        let luns = self.targets.iter().flat_map(|table| table.luns.values());
        luns.map(|lun| lun.volume.clone()).collect()
    }

    /// The served volumes, and all volumes they are made of.
    pub(crate) fn open(&self) -> BTreeSet<String> {
        self.side().open()
    }

    fn side(&self) -> Side<'_> {
        Side {
            config: &self.config,
            shown: self.volumes(),
        }
    }
}

/// A configuration with the names of those of its volumes that fronts show.
struct Side<'a> {
    config: &'a Config,
    shown: BTreeSet<String>,
}

impl Side<'_> {
    /// The shown volumes, and all volumes they are made of.
    fn open(&self) -> BTreeSet<String> {
        let parts = self.shown.iter().flat_map(|name| self.parts(name));
        parts.collect()
    }

    fn parts(&self, name: &str) -> BTreeSet<String> {
        let parts = self.config.volumes().parts(name).into_iter();
        parts.map(str::to_owned).collect()
    }
}

/// The difference between two configurations.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// What changes.
    pub(crate) made: Vec<ConfigChange>,
    /// Changes that are impossible while serving, with what to do instead.
    pub(crate) refused: Vec<Refused>,
    /// What changes about volumes that stay open.
    pub(crate) live: Changes,
    /// Both, as they are written.
    texts: (Written, Written),
}

impl Difference {
    /// What changes from `before` to `after`.
    ///
    /// # Errors
    /// If their directories cannot be looked at.
    pub(crate) async fn between(before: &Served, after: &Served) -> Result<Difference, StateError> {
        let mut difference = Difference {
            texts: (before.config.written(), after.config.written()),
            ..Difference::default()
        };
        difference
            .directories(&before.config, &after.config)
            .await?;
        difference.at_start(&before.config, &after.config);
        difference.settings(before, after);
        difference.volumes(&before.side(), &after.side());
        difference.targets(before, after);
        if before.discovery != after.discovery {
            let written = difference.written(&["discovery"]);
            difference
                .made
                .push(ConfigChange::DiscoveryAuthentication(written));
        }
        Ok(difference)
    }

    /// What changes about the attached volume called `name`, from `before` to `after`. Whatever else they say does not matter
    /// to it.
    ///
    /// # Errors
    /// As [`Difference::between`].
    pub(crate) async fn of_volume(
        before: &Config,
        after: &Config,
        name: &str,
    ) -> Result<Difference, StateError> {
        let mut difference = Difference {
            texts: (before.written(), after.written()),
            ..Difference::default()
        };
        difference.directories(before, after).await?;
        difference.at_start(before, after);
        if !after.volumes().0.contains_key(name) {
            difference
                .refused
                .push(Refused::AttachedMissing(name.to_owned()));
            return Ok(difference);
        }
        let side = |config| Side {
            config,
            shown: BTreeSet::from([name.to_owned()]),
        };
        let (before, after) = (side(before), side(after));
        let open = after.open();
        for part in before.open().intersection(&open) {
            difference.live(&before, &after, part, &open);
        }
        Ok(difference)
    }

    /// Compares the state directories, and those that relative paths start from.
    async fn directories(&mut self, before: &Config, after: &Config) -> Result<(), StateError> {
        let (was, is) = (before.state_directory(), after.state_directory());
        let (base_was, base_is) = (before.directory().to_owned(), after.directory().to_owned());
        let paths = [was.clone(), is.clone(), base_was, base_is];
        let resolve = || paths.map(|path| store::resolve(&path).unwrap_or(path));
        let real = blocking::run(blocking::WorkKind::Files, resolve).await;
        let [real_was, real_is, base_was, base_is] =
            real.map_err(StateError::io("looking at the state directory".to_owned()))?;
        if real_was != real_is {
            self.refused.push(Refused::StateDirectory {
                is,
                was,
                resolved: real_was,
            });
        }
        if base_was != base_is {
            self.refused.push(Refused::RelativePaths {
                is: after.directory().to_owned(),
                was: before.directory().to_owned(),
            });
        }
        Ok(())
    }

    /// What is read at the start only.
    fn at_start(&mut self, before: &Config, after: &Config) {
        let memory = |config: &Config| config.unit_limits().ok();
        for (what, is_other) in [
            ("lanes", before.lanes() != after.lanes()),
            ("wait", before.waiting() != after.waiting()),
            ("memory or limits.transfer", memory(before) != memory(after)),
        ] {
            if is_other {
                self.refused.push(Refused::AtStart(what));
            }
        }
    }

    fn settings(&mut self, before: &Served, after: &Served) {
        let (before, after) = (&before.config, &after.config);
        if before.limits() != after.limits() {
            let keys = ["connections", "ping_interval", "peer_timeout", "limits"];
            let written = keys.iter().flat_map(|key| self.written(&[key]));
            let written = written.collect();
            self.made.push(ConfigChange::Limits(written));
        }
        if before.digests() != after.digests() {
            let written = self.written(&["digests"]);
            self.made.push(ConfigChange::Digests(written));
        }
    }

    fn volumes(&mut self, before: &Side<'_>, after: &Side<'_>) {
        let (was, is) = (before.config.volumes(), after.config.volumes());
        let names: BTreeSet<&String> = was.0.keys().chain(is.0.keys()).collect();
        let (was_open, is_open) = (before.open(), after.open());
        for name in names {
            match (was.0.get(name), is.0.get(name)) {
                (None, _) => self.made.push(ConfigChange::VolumeAdded(name.clone())),
                (_, None) => self.made.push(ConfigChange::VolumeRemoved(name.clone())),
                (Some(was), Some(is)) if was == is => {}
                (Some(_), Some(_)) => {
                    let stays_open = was_open.contains(name) && is_open.contains(name);
                    match stays_open {
                        true => self.live(before, after, name, &is_open),
                        false => {
                            let written = self.written(&["volume", name]);
                            self.made
                                .push(ConfigChange::VolumeChanged(name.clone(), written));
                        }
                    }
                }
            }
        }
        for name in was_open.difference(&is_open) {
            if was.0.get(name).is_some_and(is_of_memory) {
                self.warn(Warning::MemoryDiscarded(name.clone()));
            }
        }
        for name in before.shown.difference(&after.shown) {
            // The volume gets closed, together with the parts that are its own.
            let parts = before.config.volumes().own_parts(name);
            let parts: BTreeSet<String> = parts.into_iter().map(str::to_owned).collect();
            if is_open.contains(name) {
                self.refused.push(Refused::StillPart(name.clone()));
            } else if let Some(part) = parts.intersection(&is_open).next() {
                self.refused.push(Refused::PartStays {
                    volume: name.clone(),
                    part: part.clone(),
                });
            }
        }
    }

    /// Compares the settings of a volume that stays open.
    fn live(&mut self, before: &Side<'_>, after: &Side<'_>, name: &str, open: &BTreeSet<String>) {
        let (was, is) = (before.config.volumes(), after.config.volumes());
        let changes = was.changes(is, name, open);
        let written = match &self.written(&["volume", name])[..] {
            [] => String::new(),
            written => format!(" ({})", written.join("; ")),
        };
        let refused = changes.refused.iter();
        let refused = refused.map(|why| Refused::VolumeLive(format!("{why}{written}")));
        self.refused.extend(refused);
        let made = changes.made.iter().cloned();
        self.made.extend(made.map(ConfigChange::VolumeLive));
        self.live.extend(changes);
    }

    fn targets(&mut self, before: &Served, after: &Served) {
        let by_name = |served: &'_ Served| -> BTreeMap<String, TargetTable> {
            let tables = served.targets.iter();
            tables
                .map(|table| (table.name.clone(), table.clone()))
                .collect()
        };
        let (was, is) = (by_name(before), by_name(after));
        let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        for name in names {
            match (was.get(name), is.get(name)) {
                (None, Some(is)) => {
                    self.made.push(ConfigChange::TargetAdded(name.clone()));
                    self.luns(name, &BTreeMap::new(), &is.luns);
                }
                (Some(_), None) => self.made.push(ConfigChange::TargetRemoved(name.clone())),
                (Some(was), Some(is)) => self.target(was, is),
                (None, None) => {}
            }
        }
    }

    fn target(&mut self, was: &TargetTable, is: &TargetTable) {
        let name = &is.name;
        self.luns(name, &was.luns, &is.luns);
        let chap = &["chap", "old_chap", "mutual", "chap_algorithms"][..];
        for (what, keys, is_other) in [
            (
                "portals",
                &["portals", "portal_groups"][..],
                was.portal_groups != is.portal_groups,
            ),
            ("allow", &["allow"], was.allow != is.allow),
            (
                "allow_from",
                &["allow_from"],
                was.allow_from != is.allow_from,
            ),
            ("authentication", chap, was.chap != is.chap),
            ("redirect", &["redirect"], was.redirect != is.redirect),
        ] {
            if is_other {
                let written = keys.iter().flat_map(|key| {
                    let below = self.written(&["target", name, key]);
                    let is_table = |line: &String| !line.starts_with(&format!("{key} "));
                    let named = |line: String| match is_table(&line) {
                        true => format!("{key}.{line}"),
                        false => line,
                    };
                    below.into_iter().map(named).collect::<Vec<_>>()
                });
                let written = written.collect();
                self.made.push(ConfigChange::TargetChanged {
                    target: name.clone(),
                    setting: what,
                    written,
                });
            }
        }
    }

    fn luns(&mut self, target: &str, was: &BTreeMap<u32, LunEntry>, is: &BTreeMap<u32, LunEntry>) {
        let of = |number: u32, lun: &LunEntry| LunOf {
            target: target.to_owned(),
            number,
            volume: lun.volume.clone(),
        };
        let numbers: BTreeSet<u32> = was.keys().chain(is.keys()).copied().collect();
        for number in numbers {
            match (was.get(&number), is.get(&number)) {
                (None, Some(lun)) => self.made.push(ConfigChange::LunAdded(of(number, lun))),
                (Some(lun), None) => self.made.push(ConfigChange::LunRemoved(of(number, lun))),
                (Some(was), Some(is)) if was != is => {
                    self.made.push(ConfigChange::LunChanged {
                        lun: of(number, is),
                        from_to: lun_from_to(was, is),
                    });
                    if was.volume != is.volume {
                        self.warn(Warning::OtherDisk {
                            lun: of(number, is),
                            was: was.volume.clone(),
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// What is written differently at this way of keys.
    fn written(&self, path: &[&str]) -> Vec<String> {
        self.texts.0.differences(&self.texts.1, path)
    }

    fn warn(&mut self, warning: Warning) {
        self.made.push(ConfigChange::Warning(warning));
    }
}

/// What is different about a LUN.
fn lun_from_to(was: &LunEntry, is: &LunEntry) -> String {
    let mut all = Vec::new();
    if was.volume != is.volume {
        all.push(format!("{} → {}", was.volume, is.volume));
    }
    for (what, was, is) in [
        ("read_only", was.read_only, is.read_only),
        ("removable", was.removable, is.removable),
    ] {
        if was != is {
            all.push(format!("{what} {was} → {is}"));
        }
    }
    all.join("; ")
}

/// Whether it keeps data only in memory. Volumes that it refers to by name are not counted.
fn is_of_memory(node: &Node) -> bool {
    match &node.what {
        NodeForm::Named(_) => false,
        NodeForm::Inline(kind) => kind.is_volatile() || kind.children().iter().any(is_of_memory),
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use engine::{Lane, LaneConfig};

    use super::*;

    const IQN: &str = "iqn.2026-11.io.sanstone:t0";

    /// What changes from volumes `before` to volumes `after`, of which the one called db is served.
    fn difference(before: &str, after: &str) -> Difference {
        let directory = env::temp_dir().join(format!("sanstone-difference-{}", process::id()));
        fs::create_dir_all(&directory).expect("room");
        let served = |text: &str| {
            let target = format!("[target.\"{IQN}\"]\nluns = [\"db\"]\nallow = [\"*\"]\n");
            // A file for each test, which may run at the same time.
            let thread = std::thread::current().name().map(str::to_owned);
            let name = thread.unwrap_or_default().replace(':', "-");
            let path = directory.join(format!("{name}.toml"));
            fs::write(&path, format!("{text}{target}")).expect("room");
            let config = Config::load(&path).unwrap_or_else(|failure| panic!("{failure}"));
            Served::new(config).unwrap_or_else(|failure| panic!("{failure}"))
        };
        let (before, after) = (served(before), served(after));
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        let found = lane.block_on(Difference::between(&before, &after));
        found.expect("the directories can be looked at")
    }

    fn file(size: &str) -> String {
        format!("file = {{ path = \"db.img\", size = \"{size}\" }}")
    }

    fn db(kind: &str) -> String {
        format!("[volume.db]\n{kind}\n")
    }

    #[test]
    fn a_larger_size_is_a_change_of_a_volume_that_is_served() {
        let cached = |size| format!("cache = {{ size = \"64MiB\", of = {{ {} }} }}", file(size));
        let named = |size: &str| {
            let file = file(size);
            format!("[volume.disk]\n{file}\n[volume.db]\nstats = {{ of = \"disk\" }}\n")
        };
        for (before, after, name) in [
            (db(&file("20GiB")), db(&file("30GiB")), "db"),
            (db(&cached("20GiB")), db(&cached("30GiB")), "db"),
            (named("20GiB"), named("30GiB"), "disk"),
        ] {
            let found = difference(&before, &after);
            let grows = format!("volume {name} grows from 20 GiB to 30 GiB");
            assert_eq!(found.made, [ConfigChange::VolumeLive(grows)], "{after}");
            assert_eq!(found.refused, [], "{after}");
        }
        let same = difference(&db(&file("20GiB")), &db(&file("20480MiB")));
        assert_eq!(same.made, []);
    }

    #[test]
    fn each_change_says_what_was_and_what_is() {
        let other = |size: &str| {
            format!(
                "{}\n[volume.other]\n{}\n",
                db(&file("1GiB")),
                file(size).replace("db.img", "other.img")
            )
        };
        let limits =
            |connections: u32| format!("connections = {connections}\n{}", db(&file("1GiB")));
        for (before, after, line) in [
            (
                other("1GiB"),
                other("2GiB"),
                "~ volume other: file.size \"1GiB\" → \"2GiB\"",
            ),
            (
                limits(7),
                limits(8),
                "~ limits, for new connections: connections 7 → 8",
            ),
            (
                db(&file("1GiB")),
                format!("digests = false\n{}", db(&file("1GiB"))),
                "~ digests, for new connections: digests (not set) → false",
            ),
        ] {
            let lines: Vec<String> = difference(&before, &after)
                .made
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(lines, [line]);
        }
        let lun = |volume: &str, read_only| LunEntry {
            volume: volume.to_owned(),
            removable: false,
            read_only,
        };
        assert_eq!(
            lun_from_to(&lun("a", false), &lun("b", true)),
            "a → b; read_only false → true"
        );
    }

    /// Two files, of which the first has this size.
    fn two_files(size: &str) -> String {
        let child = |name: &str, size: &str| {
            format!("{{ file = {{ path = \"{name}\", size = \"{size}\" }} }}")
        };
        format!("[{}, {}]", child("a", size), child("b", "20GiB"))
    }

    #[test]
    fn a_disk_of_a_stripe_or_concat_may_grow_while_it_is_served() {
        for kind in ["stripe", "concat"] {
            let [before, after] = ["20GiB", "30GiB"]
                .map(|size| db(&format!("{kind} = {{ of = {} }}", two_files(size))));
            let found = difference(&before, &after);
            assert!(found.refused.is_empty(), "{found:?}");
            let grows = "volume db: a grows from 20 GiB to 30 GiB".to_owned();
            assert_eq!(found.made, [ConfigChange::VolumeLive(grows)]);
        }
    }

    #[test]
    fn what_cannot_change_while_it_is_served_is_refused_with_the_reason() {
        let mirrored = |size: &str| db(&format!("mirror = {{ of = {} }}", two_files(size)));
        let of_named = |size: &str| {
            let disk = file(size);
            let other = "{ file = { path = \"b\", size = \"20GiB\" } }";
            format!("[volume.disk]\n{disk}\n[volume.db]\nmirror = {{ of = [\"disk\", {other}] }}\n")
        };
        let ram = |size: &str| db(&format!("ram = {{ size = \"{size}\" }}"));
        let other_cache = file("30GiB").replace(" }", ", cache = \"write-back\" }");
        let cached = format!(
            "cache = {{ size = \"64MiB\", of = {{ {} }} }}",
            file("20GiB")
        );
        for (before, after, said) in [
            (
                db(&file("20GiB")),
                db(&file("10GiB")),
                "volume \"db\": its size cannot become 10GiB while it is served with 20GiB",
            ),
            (
                mirrored("20GiB"),
                mirrored("30GiB"),
                "volume \"db\": a cannot grow to 30GiB, because it is part of volume \"db\", and a \
                 mirror keeps the length",
            ),
            (
                of_named("20GiB"),
                of_named("30GiB"),
                "volume \"disk\": db.img cannot grow to 30GiB, because it is part of volume \"db\", \
                 and a mirror keeps the length",
            ),
            (
                ram("20MiB"),
                ram("30MiB"),
                "volume \"db\": the memory of a ram volume is reserved when it is opened",
            ),
            (
                db(&file("20GiB")),
                db(&other_cache),
                "volume \"db\": these settings cannot change while it is served",
            ),
            (
                db(&file("20GiB")),
                db(&cached),
                "volume \"db\": these settings cannot change while it is served",
            ),
        ] {
            let found = difference(&before, &after);
            let [refused] = &found.refused[..] else {
                panic!("{after}: {found:?}");
            };
            assert!(refused.to_string().starts_with(said), "{refused}");
        }
    }
}
