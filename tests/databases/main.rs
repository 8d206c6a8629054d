//! Databases on an attached volume: MariaDB and PostgreSQL on a file system, on a loop device, on the file of
//! `sanstone attach`, which is a cached stripe of four shares from two `sanstone serve`s.
//!
//! Under load one component after the other is killed: the database, the attachment, a target, a path. Each time the
//! database must recover, its own checker must find no fault, and no transaction acknowledged to a client may be
//! missing. These tests need root, for mounts and loop devices.

mod attached;
mod fsx;
mod kills;
mod ledger;
mod load;
mod postgresql;
mod shares;

use attached::FileSystem;
use harness::mariadb::MariaDb;
use kills::{Rounds, survives};

#[test]
fn mariadb_on_ext4() {
    survives::<MariaDb>(FileSystem::Ext4, Rounds::once());
}

#[test]
fn postgresql_on_xfs() {
    survives::<postgresql::PostgreSql>(FileSystem::Xfs, Rounds::once());
}

#[test]
#[ignore = "ten minutes: `make test-long` runs it"]
fn mariadb_on_xfs_for_ten_minutes() {
    survives::<MariaDb>(FileSystem::Xfs, Rounds::minutes(10));
}

#[test]
#[ignore = "ten minutes: `make test-long` runs it"]
fn postgresql_on_ext4_for_ten_minutes() {
    survives::<postgresql::PostgreSql>(FileSystem::Ext4, Rounds::minutes(10));
}
