//! What a file of the state directory holds, as the daemon knows it. A value is in use only once it is stored; and after a
//! write that failed, which leaves either value in the file, it is stored again before the next one is in use.

use std::path::PathBuf;

use serde::Serialize;

use crate::{StateError, record::write_toml};

/// A value, and the file that it is stored in.
#[derive(Clone, Debug)]
pub(crate) struct Stored<T> {
    file: PathBuf,
    value: T,
    /// Whether the file may hold something else.
    is_in_doubt: bool,
}

impl<T: PartialEq + Serialize> Stored<T> {
    /// The value that was read from `file`.
    pub(crate) fn new(file: PathBuf, value: T) -> Self {
        Stored {
            file,
            value,
            is_in_doubt: false,
        }
    }

    pub(crate) fn get(&self) -> &T {
        &self.value
    }

    pub(crate) fn file(&self) -> &PathBuf {
        &self.file
    }

    /// Stores `next`, unless it is stored already, then puts it into use.
    ///
    /// # Errors
    /// If it cannot be written: the old value stays in use.
    pub(crate) fn set(&mut self, next: T) -> Result<(), StateError> {
        if self.value == next && !self.is_in_doubt {
            return Ok(());
        }
        self.is_in_doubt = true;
        write_toml(&self.file, &next)?;
        self.value = next;
        self.is_in_doubt = false;
        Ok(())
    }

    /// Goes back to the value `before`, even if it cannot be stored: nothing of the other one was ever used.
    ///
    /// # Errors
    /// If it cannot be written. The next [`set`](Self::set) replaces what the file holds.
    pub(crate) fn put_back(&mut self, before: T) -> Result<(), StateError> {
        self.is_in_doubt |= self.value != before;
        self.value = before;
        if self.is_in_doubt {
            write_toml(&self.file, &self.value)?;
            self.is_in_doubt = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use engine::{
        sim::{FaultKind, InjectedFault, World},
        store,
    };

    use super::*;

    const FILE: &str = "/srv/numbers.toml";
    const NEW: &str = "/srv/numbers.new";

    type Numbers = std::collections::BTreeMap<String, u16>;

    fn numbers(names: &[&str]) -> Numbers {
        let named = names.iter().zip(1..);
        named.map(|(name, n)| ((*name).to_owned(), n)).collect()
    }

    fn in_file() -> Numbers {
        let text = store::read(Path::new(FILE)).expect("it is there");
        toml::from_str(std::str::from_utf8(&text).expect("text")).expect("numbers")
    }

    /// Each way in which a write can fail: before the new file has its name, and after.
    #[test]
    fn a_value_that_was_not_stored_is_not_in_use_and_what_is_in_use_is_stored() {
        for (kind, at, errno) in [
            (FaultKind::Create, NEW, 28),
            (FaultKind::Create, NEW, 30),
            (FaultKind::Settle, "/srv", 5),
        ] {
            let world = World::new(1);
            let host = world.host("machine");
            host.put_file(FILE, b"a = 1\n");
            let fail = || {
                host.add_fault(InjectedFault {
                    path: Some(at.into()),
                    times: Some(1),
                    ..InjectedFault::new(kind, errno)
                });
            };
            world.block_on(&host, async {
                let mut stored = Stored::new(FILE.into(), numbers(&["a"]));
                fail();
                stored.set(numbers(&["a", "b"])).expect_err("no room");
                assert_eq!(stored.get(), &numbers(&["a"]), "{kind:?}");
                store::look(Path::new(NEW)).expect_err("it takes no room");
                // The same as is in use, and yet it has to be written.
                stored.set(numbers(&["a"])).expect("room");
                assert_eq!(in_file(), numbers(&["a"]), "{kind:?}");
                stored.set(numbers(&["a", "b"])).expect("room");
                assert_eq!(in_file(), numbers(&["a", "b"]));
                fail();
                stored.put_back(numbers(&["a"])).expect_err("no room");
                assert_eq!(stored.get(), &numbers(&["a"]), "{kind:?}");
                stored.set(numbers(&["a"])).expect("room");
                assert_eq!(in_file(), numbers(&["a"]), "{kind:?}");
            });
        }
    }
}
