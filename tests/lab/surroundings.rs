//! What a user's account and machine bring along must not change a measurement: variables that name another server,
//! locales, a PATH for users, a directory for temporary files that is long and private; secrets in URLs.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use harness::{
    directory::Directory,
    free_port,
    run::run,
    sanstone::{Sanstone, target_table},
};

use crate::{
    Place, assert_told, limit,
    oltp::{has_mariadb, has_packages, has_postgresql, short},
};

/// Variables that the servers' programs heed, or that stop them.
const VARIABLES: [(&str, &str); 9] = [
    ("PGHOSTADDR", "127.0.0.1"),
    ("PGPORT", "5433"),
    ("PGOPTIONS", "-c no_such_setting=1"),
    ("PGUSER", "somebody"),
    ("MYSQL_PWD", "secret"),
    ("MYSQL_TCP_PORT", "1"),
    ("LC_ALL", "xx_XX.UTF-8"),
    ("LD_LIBRARY_PATH", "/nonexistent"),
    ("PATH", "/usr/bin:/bin"),
];

/// Runs a few transactions in that environment, with this directory for temporary files.
fn transacts(database: &str, temporary: &str, mode: u32) {
    let place = Place::new();
    let directory = place.directory.join(temporary);
    fs::create_dir_all(&directory).expect("room");
    let private = directory
        .ancestors()
        .take_while(|it| it.starts_with(place.directory.path()));
    for directory in private {
        fs::set_permissions(directory, PermissionsExt::from_mode(mode)).expect("it is ours");
    }
    let bed = Directory::new();
    fs::set_permissions(bed.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    let profile = place.directory.write("short.toml", short(database));
    let call = [
        "run",
        &profile.to_string_lossy(),
        "--on",
        &bed.path().to_string_lossy(),
    ];
    let mut command = place.command(&call);
    command.envs(VARIABLES).env("TMPDIR", &directory);
    let ran = run(&mut command, limit(&call)).success();
    assert_told(&place, &ran);
    assert_eq!(
        fs::read_dir(bed.path()).expect("it is there").count(),
        0,
        "{ran}"
    );
}

const LONG: &str = "a-directory-with-a-long-name-as-build-systems-make-them/and-another-one-below-with-a-long-name/tmp";

#[test]
fn mariadb_is_ours_whatever_the_environment_says() {
    if has_packages() {
        transacts("mariadb", LONG, 0o755);
    }
}

#[test]
fn postgresql_is_ours_whatever_the_environment_says() {
    if has_packages() && has_postgresql() {
        transacts("postgresql", "tmp", 0o700);
    }
}

#[test]
fn a_directory_that_is_closed_to_the_server_is_named() {
    if !has_packages() || !has_mariadb() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return harness::skip("without root, the server runs as the same user");
    }
    let place = Place::new();
    let closed = place.directory.join("closed");
    fs::create_dir_all(closed.join("bed")).expect("room");
    let open = PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.directory.path(), open).expect("it is ours");
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).expect("it is ours");
    let profile = place.directory.write("short.toml", short("mariadb"));
    let bed = closed.join("bed");
    let ran = place.run(&[
        "run",
        &profile.to_string_lossy(),
        "--on",
        &bed.to_string_lossy(),
    ]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    let told = format!("user nobody, who may not enter {}:", closed.display());
    assert!(ran.stderr.contains(&told), "{ran}");
}

/// Few reads, in a moment.
const READS: &str = "kind = \"queue\"\nabout = \"A few reads\"\nsize = \"8MiB\"\nblock = \"4KiB\"\nluns = 1\n\
                     outstanding = [1]\ntime = \"60ms\"\n";

#[test]
fn a_secret_logs_in_and_is_told_to_nobody() {
    const SECRET: &str = "hush-hush-hush-1";
    let directory = Directory::new();
    let secret = directory.write("v.secret", SECRET);
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let port = free_port();
    let configuration = format!(
        "[volume.v]\nram = {{ size = \"8MiB\" }}\n{}chap = {{ user = \"dbhost\", secret_file = \"v.secret\" }}\n",
        target_table(port, &["v"])
    );
    let target = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let url = target.url(0);
    let with_user = url.replace("iscsi://", &format!("iscsi://dbhost%{SECRET}@"));
    let told = |on: &str, more: &[&str], code| {
        let place = Place::new();
        let profile = place.directory.write("reads.toml", READS);
        let profile = profile.to_string_lossy();
        let mut call = vec!["run", &*profile, "--on", on];
        call.extend(more);
        let ran = place.run(&call);
        assert_eq!(ran.code(), Some(code), "{ran}");
        let written = ["lab.json", "lab.html"].map(|name| place.directory.join(name));
        let written = written.map(|path| fs::read_to_string(path).unwrap_or_default());
        for text in [&ran.stdout, &ran.stderr, &written[0], &written[1]] {
            assert!(!text.contains("hush"), "{text}");
        }
        (ran, place)
    };
    let (ran, place) = told(&with_user, &[], 0);
    assert_eq!(assert_told(&place, &ran)["on"][0], *url);
    let login = [
        "--chap-user",
        "dbhost",
        "--chap-secret-file",
        &secret.to_string_lossy(),
    ];
    told(&url, &login, 0);
    told(&with_user, &login, 2);
    // The target refuses it without, and another secret.
    let (ran, _) = told(&url, &[], 1);
    assert!(ran.stderr.contains("add --chap-user USER"), "{ran}");
    told(&with_user.replace("hush-1", "hush-2"), &[], 1);
    assert!(Path::new(&secret).exists());
}
