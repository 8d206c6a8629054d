//! Stripes and concats that are open, and take the length that their children have room for. These may be sets themselves, so
//! it is done again until none has room.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Weak,
};

use super::{Graph, live::spaced, volume_of};
use crate::{
    kinds::{NewLength, mirror::MirrorHandle, stripe::OpenSet},
    part::Part,
    values::Size,
};

impl Graph {
    /// What [`Graph::lengthen`] does to what has room now, for people.
    pub fn may_lengthen(&self) -> Vec<String> {
        let sets = self.sets_of_their_own();
        let rooms = sets
            .iter()
            .filter_map(|(path, set)| Some(told(path, set.room()?)));
        rooms.collect()
    }

    /// Has every open stripe and concat take the length that its children have room for. Returns what has become longer, and
    /// what has not although it has room, each for people.
    pub async fn lengthen(&self) -> (Vec<String>, Vec<String>) {
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        let mut tried = BTreeSet::new();
        loop {
            let mut sets = self.sets_of_their_own().into_iter();
            let next = sets.find_map(|(path, set)| {
                let room = (path, set.room()?.to_bytes);
                (!tried.contains(&room)).then_some((room, set))
            });
            let Some((room, set)) = next else {
                return (made, failed);
            };
            let path = &room.0;
            match set.lengthen().await {
                Ok(lengths) => made.push(told(path, lengths)),
                Err(error) => failed.push(format!(
                    "volume {}: its {} keeps its length, although its disks have become longer: {error}; apply this again",
                    volume_of(path),
                    kind_of(path)
                )),
            }
            tried.insert(room);
        }
    }

    /// Those that are part of nothing that keeps its length. A mirror finds what it keeps on a copy by where that ends, so a set that
    /// is a copy stays as long as it is while the mirror uses it.
    fn sets_of_their_own(&self) -> BTreeMap<String, OpenSet> {
        let is_open = |(_, part): &(&String, &Weak<Part>)| part.strong_count() > 0;
        let open = self.named.iter().filter(is_open);
        let open: BTreeSet<String> = open.map(|(name, _)| name.clone()).collect();
        let mirrors = self.context.handles.all::<MirrorHandle>();
        let is_copy = |path: &str| {
            let is_above = |mirror: &String| path.starts_with(&format!("{mirror}/"));
            mirrors.keys().any(is_above) || self.volumes.keeper(volume_of(path), &open).is_some()
        };
        let mut sets = self.context.handles.all::<OpenSet>();
        sets.retain(|path, _| !is_copy(path));
        sets
    }
}

fn told(path: &str, lengths: NewLength) -> String {
    let [from, to] =
        [lengths.from_bytes, lengths.to_bytes].map(|bytes| spaced(Size::from_bytes(bytes)));
    format!(
        "volume {}: its {} grows from {from} to {to}, for which its disks have room",
        volume_of(path),
        kind_of(path)
    )
}

fn kind_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}
