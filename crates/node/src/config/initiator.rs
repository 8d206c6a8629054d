//! `[initiator]`: what all `iscsi` disks of a configuration have in common. Each setting holds where a disk does not write it
//! itself. It is put into the tables of the disks before these are read, so that errors in it have their place there.

use std::borrow::Cow;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The key of the table.
pub(super) const TABLE: &str = "initiator";
/// The kind of the volumes that it is for.
const KIND: &str = "iscsi";
/// What a disk calls the initiator's name.
const NAME_OF_DISK: &str = "initiator";
/// What the table calls it.
const NAME: &str = "name";

/// Gives every `iscsi` volume in `volumes`, a table of all volumes by name, the settings of `common` that it does not have.
pub(super) fn give<'a>(volumes: &mut DeTable<'a>, common: &DeTable<'a>) {
    let names: Vec<_> = volumes.keys().cloned().collect();
    for name in names {
        if let Some(volume) = volumes.get_mut(&name) {
            give_within(volume.get_mut(), common);
        }
    }
}

fn give_within<'a>(value: &mut DeValue<'a>, common: &DeTable<'a>) {
    match value {
        DeValue::Table(table) => {
            let keys: Vec<_> = table.keys().cloned().collect();
            for key in keys {
                let Some(inner) = table.get_mut(&key) else {
                    continue;
                };
                match inner.get_mut() {
                    DeValue::Table(disk) if key.get_ref() == KIND => add(disk, common),
                    other => give_within(other, common),
                }
            }
        }
        DeValue::Array(values) => {
            for value in values.iter_mut() {
                give_within(value.get_mut(), common);
            }
        }
        _ => {}
    }
}

fn add<'a>(disk: &mut DeTable<'a>, common: &DeTable<'a>) {
    for (key, value) in common.iter() {
        let name = match key.get_ref().as_ref() {
            NAME => NAME_OF_DISK,
            other => other,
        };
        let key = Spanned::new(key.span(), Cow::Owned(name.to_owned()));
        if !disk.contains_key(&key) {
            disk.insert(key, value.clone());
        }
    }
}
