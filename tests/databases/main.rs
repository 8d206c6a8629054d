//! Databases on an attached volume: MariaDB and PostgreSQL on a file system, on a loop device, on the file of
//! `sanstone attach`, which is a cached stripe of four shares from two `sanstone serve`s.
//!
//! One of the `serve`s is reached over two paths, the other over one. Under load one component after the other is
//! killed: all paths, one of two in silence, a target, the database, the attachment. The database must not feel the
//! loss of a path or a target, and must recover from the others; its own checker must find no fault, and no transaction
//! acknowledged to a client may be missing. The tables are larger than the database's memory and the cache, so that a
//! stale block would show. These tests need root, for mounts and loop devices.
//!
//! The same databases on a mirror of two storage machines ([`mirrored`]), which fail one after the other, and on disks whose
//! administrator changes all that can be changed ([`second_day`]).

mod attached;
mod fsx;
mod kills;
mod ledger;
mod load;
mod mirrored;
mod postgresql;
mod second_day;
mod shares;
mod storage;
mod storage_server;

use attached::FileSystem;
use harness::mariadb::MariaDb;
use kills::{Rounds, survives};
use second_day::Below;
use std::time::Duration;

#[test]
fn mariadb_on_ext4() {
    survives::<MariaDb>(FileSystem::Ext4, Rounds::once());
}

#[test]
fn postgresql_on_xfs() {
    survives::<postgresql::PostgreSql>(FileSystem::Xfs, Rounds::once());
}

#[test]
fn mariadb_on_a_mirror() {
    mirrored::outlives::<MariaDb>(FileSystem::Xfs, Rounds::once());
}

#[test]
fn postgresql_on_a_mirror() {
    mirrored::outlives::<postgresql::PostgreSql>(FileSystem::Ext4, Rounds::once());
}

#[test]
fn mariadb_on_a_stripe_whose_servers_change_and_are_rebooted() {
    let away = Duration::from_secs(10);
    second_day::outlives::<MariaDb>(Below::Stripe, away);
}

#[test]
fn postgresql_on_a_disk_whose_server_changes_and_is_rebooted() {
    let away = Duration::from_secs(10);
    second_day::outlives::<postgresql::PostgreSql>(Below::Disk, away);
}

#[test]
fn postgresql_on_a_concat_that_takes_the_disk_of_another_server() {
    let away = Duration::from_secs(1);
    second_day::outlives::<postgresql::PostgreSql>(Below::Concat, away);
}

#[test]
#[ignore = "five minutes: `make test-long` runs it"]
fn mariadb_on_a_stripe_whose_servers_are_away_for_90_seconds() {
    let away = Duration::from_secs(90);
    second_day::outlives::<MariaDb>(Below::Stripe, away);
}

#[test]
#[ignore = "four minutes: `make test-long` runs it"]
fn mariadb_on_a_disk_whose_server_is_away_for_90_seconds() {
    let away = Duration::from_secs(90);
    second_day::outlives::<MariaDb>(Below::Disk, away);
}

#[test]
#[ignore = "ten minutes: `make test-long` runs it"]
fn mariadb_on_a_mirror_for_ten_minutes() {
    mirrored::outlives::<MariaDb>(FileSystem::Ext4, Rounds::minutes(10));
}

#[test]
#[ignore = "ten minutes: `make test-long` runs it"]
fn postgresql_on_a_mirror_for_ten_minutes() {
    mirrored::outlives::<postgresql::PostgreSql>(FileSystem::Xfs, Rounds::minutes(10));
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
