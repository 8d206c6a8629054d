//! `mount -t sanstone` and /etc/fstab: the helpers of the package, run by the system's own `mount` and `umount`, in a mount
//! namespace in which they are installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use harness::directory::Directory;
use harness::process::program;
use harness::run::run;
use harness::sanstone::{IQN, binary, target_table};

use crate::attached::{LONG, can_attach, ran, text};

/// Installs the helpers in a namespace of its own: `/usr/sbin` shows everything that it has, and them.
const INSTALLED: &str = r#"
set -eu
cd "$1"
mkdir real sbin files
mount --bind /usr/sbin real
for program in real/*; do ln -s "$1/$program" sbin/; done
cp mount.sanstone umount.sanstone sbin/
mount --bind sbin /usr/sbin
options=config=$1/sanstone.toml,disk=$1/db.disk
fail() { echo "$*"; cat db.disk.log 2>/dev/null; exit 1; }
attached() { grep -qz '^attach$' "/proc/$(cat db.disk.pid)/cmdline"; }
"#;

/// Runs `steps` where the helpers are installed and a volume `db` has a file system.
#[track_caller]
fn with_helpers(steps: &str) {
    let directory = Directory::new();
    let root = directory.path().canonicalize().expect("it is there");
    let image = directory.sparse("db.img", 64 << 20);
    ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", text(&image)]).success();
    directory.write(
        "sanstone.toml",
        "[volume.db]\nfile = { path = \"db.img\", size = \"64MiB\" }\n",
    );
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    for name in ["mount.sanstone", "umount.sanstone"] {
        let helper = fs::read_to_string(packaging.join(name)).expect(name);
        let helper = helper.replace("/usr/bin/sanstone", text(&binary()));
        let path = directory.write(name, helper);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).expect("its mode");
    }
    let mut command = Command::new(program("unshare", "util-linux"));
    command.env("SANSTONE", binary());
    command.args([
        "--mount",
        "--propagation",
        "slave",
        "sh",
        "-c",
        &format!("{INSTALLED}{steps}"),
        "sh",
        text(&root),
    ]);
    run(&mut command, LONG).success();
}

#[test]
fn a_volume_is_mounted_by_mount_and_detached_by_umount() {
    if !can_attach() {
        return;
    }
    with_helpers(
        r#"
mount -t sanstone db "$1/files" -o "$options,noatime,_netdev"
attached || fail "nothing is attached"
grep -q " $1/files ext4 rw,noatime" /proc/self/mounts || fail "$(cat /proc/self/mounts)"
echo content >files/file
# Another mode is the file system's own matter.
for mode in ro rw; do
    mount -t sanstone db "$1/files" -o "$options,noatime,_netdev,remount,$mode"
    grep -q " $1/files ext4 $mode,noatime" /proc/self/mounts || fail "$mode: $(cat /proc/self/mounts)"
done
attached || fail "it is not attached any more"
# In use, it stays as it is.
if (cd files && umount "$1/files"); then fail "it was in use"; fi
attached || fail "it is still mounted"
pid=$(cat db.disk.pid)
umount "$1/files"
mountpoint -q files && fail "it is mounted"
[ ! -e "/proc/$pid" ] || grep -q '^State:.Z' "/proc/$pid/status" || fail "it is attached"
[ ! -e db.disk.pid ] || fail "its number is left"
echo "db $1/files sanstone $options,ro,_netdev,x-systemd.automount 0 0" >fstab
mount -T fstab "$1/files"
[ "$(cat files/file)" = content ] || fail "it has lost something"
if touch files/other 2>/dev/null; then fail "it is read-only"; fi
umount "$1/files"
"#,
    );
}

#[test]
fn whoever_mounts_it_once_more_leaves_the_first_as_it_is() {
    if !can_attach() {
        return;
    }
    with_helpers(
        r#"
echo "db $1/files sanstone $options 0 0" >fstab
mount -T fstab "$1/files"
pid=$(cat db.disk.pid)
mount -a -T fstab || fail "it is mounted already"
mkdir other
if mount -t sanstone db "$1/other" -o "$options"; then fail "it is mounted elsewhere"; fi
[ "$(cat db.disk.pid)" = "$pid" ] || fail "another number: $(cat db.disk.pid)"
grep -q ' INFO mounted ' db.disk.log || fail "the log of the first is gone"
umount "$1/files"
[ ! -e "/proc/$pid" ] || grep -q '^State:.Z' "/proc/$pid/status" || fail "it is attached"
mount -T fstab "$1/files"
umount "$1/files"
ls db.disk db.disk.pid db.disk.log 2>/dev/null && fail "something is left"
true
"#,
    );
}

#[test]
fn a_mount_that_is_interrupted_leaves_nothing() {
    if !can_attach() {
        return;
    }
    with_helpers(
        r#"
cat >>sanstone.toml <<'far'
[volume.far]
iscsi = { url = "iscsi://127.0.0.1:1/iqn.2026-11.example:far/0", wait_at_start = "10min" }
far
attaches() { grep -lzxF far /proc/[0-9]*/cmdline 2>/dev/null | xargs -r grep -lzxF "$1/sanstone.toml" 2>/dev/null; }
setsid mount -t sanstone far "$1/files" -o "config=$1/sanstone.toml,disk=$1/far.disk" &
tries=0
until grep -q 'waiting for the disk' far.disk.log 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "it does not wait"
    sleep 0.1
done
[ -n "$(attaches "$1")" ] || fail "it is not there"
kill -TERM "-$!"
wait "$!" && fail "it is mounted"
tries=0
# The helper goes on after the `mount` that has called it.
while [ -n "$(attaches "$1")" ] || ls far.disk far.disk.pid far.disk.log 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "it is attached: $(attaches "$1")"
    sleep 0.1
done
"#,
    );
}

#[test]
fn what_a_killed_mount_has_begun_is_ended_by_umount_and_taken_over_by_the_next_mount() {
    if !can_attach() {
        return;
    }
    let port = harness::free_port();
    let target = target_table(port, &["disk"]);
    with_helpers(&format!(
        r#"
cat >server.toml <<'server'
[volume.disk]
file = {{ path = "db.img", size = "64MiB" }}
{target}
server
cat >far.toml <<'far'
[volume.db]
iscsi = {{ url = "iscsi://127.0.0.1:{port}/{IQN}/0", wait_at_start = "10min" }}
far
options=config=$1/far.toml,disk=$1/db.disk
begin_and_kill() {{
    setsid mount -t sanstone db "$1/files" -o "$options" &
    mounting=$!
    tries=0
    until grep -q 'waiting for the disk' db.disk.log 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || fail "it does not wait"
        sleep 0.1
    done
    # The attachment has a session of its own.
    kill -KILL "-$mounting"
    pid=$(cat db.disk.pid)
}}
begin_and_kill "$1"
"$SANSTONE" serve -c server.toml 2>server.log &
server=$!
trap 'kill $server' EXIT
mount -t sanstone db "$1/files" -o "$options" || fail "it is not mounted"
[ "$(cat db.disk.pid)" = "$pid" ] || fail "another one: $(cat db.disk.pid), not $pid"
umount "$1/files"
ls db.disk db.disk.pid db.disk.log 2>/dev/null && fail "something is left"
kill "$server"
wait "$server"
begin_and_kill "$1"
"$SANSTONE" serve -c server.toml 2>server.log &
server=$!
until mountpoint -q files; do sleep 0.1; done
umount "$1/files"
ls db.disk db.disk.pid db.disk.log 2>/dev/null && fail "something is left"
[ ! -e "/proc/$pid" ] || grep -q '^State:.Z' "/proc/$pid/status" || fail "it is attached"
"#
    ));
}

#[test]
fn two_mounts_at_once_are_one() {
    if !can_attach() {
        return;
    }
    with_helpers(
        r#"
mount -t sanstone db "$1/files" -o "$options" & one=$!
mount -t sanstone db "$1/files" -o "$options" & other=$!
wait "$one" || fail "the first has failed"
wait "$other" || fail "the second has failed"
[ "$(grep -c " $1/files " /proc/self/mounts)" = 1 ] || fail "$(cat /proc/self/mounts)"
umount "$1/files"
ls db.disk db.disk.pid db.disk.log 2>/dev/null && fail "something is left"
true
"#,
    );
}

#[test]
fn an_umount_that_is_interrupted_while_its_disk_is_away_detaches_it_nevertheless() {
    if !can_attach() {
        return;
    }
    let port = harness::free_port();
    let target = target_table(port, &["disk"]);
    with_helpers(&format!(
        r#"
cat >server.toml <<'server'
[volume.disk]
file = {{ path = "db.img", size = "64MiB" }}
{target}
server
cat >far.toml <<'far'
[volume.db]
iscsi = {{ url = "iscsi://127.0.0.1:{port}/{IQN}/0", wait_at_start = "5min" }}
far
"$SANSTONE" serve -c server.toml 2>server.log &
server=$!
trap 'kill -CONT $server; kill $server' EXIT
mount -t sanstone db "$1/files" -o "config=$1/far.toml,disk=$1/db.disk"
pid=$(cat db.disk.pid)
echo content >files/file
kill -STOP $server
setsid umount "$1/files" &
umounting=$!
sleep 1
kill -TERM "-$umounting"
kill -CONT $server
tries=0
# The helper goes on after the `umount` that has called it.
while ls db.disk db.disk.pid db.disk.log 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || fail "it is attached"
    sleep 0.1
done
[ ! -e "/proc/$pid" ] || grep -q '^State:.Z' "/proc/$pid/status" || fail "it is attached"
mountpoint -q files && fail "it is mounted"
true
"#
    ));
}

#[test]
fn what_is_left_of_a_killed_one_is_not_taken_for_a_mount() {
    if !can_attach() {
        return;
    }
    with_helpers(
        r#"
mount -t sanstone db "$1/files" -o "$options"
kill -9 "$(cat db.disk.pid)"
# No file system any more. What the dead one has in flight is written before its lock is gone.
flock --wait 60 db.img dd if=/dev/zero of=db.img bs=1k count=8 conv=notrunc status=none
if mount -t sanstone db "$1/files" -o "$options" 2>said; then fail "nothing can be mounted"; fi
grep -q "no file system" said || fail "$(cat said)"
mountpoint -q files && fail "it is mounted"
true
"#,
    );
}

#[test]
fn a_number_that_another_attach_has_by_now_is_left_alone() {
    if !can_attach() {
        return;
    }
    with_helpers(
        r#"
mount -t sanstone db "$1/files" -o "$options"
pid=$(cat db.disk.pid)
mkdir other
truncate -s 16M other/db.img
sed s/64MiB/16MiB/ sanstone.toml >other/sanstone.toml
"$SANSTONE" attach -c other/sanstone.toml db --fuse other/disk 2>other/log &
other=$!
until grep -q ' attached ' other/log; do sleep 0.1; done
echo "$other" >db.disk.pid
umount "$1/files"
sleep 1
mountpoint -q other/disk || fail "the other one was ended: $(cat other/log)"
kill "$pid" "$other"
wait "$other"
"#,
    );
}

#[test]
fn what_cannot_be_mounted_is_said_by_mount() {
    if !can_attach() {
        return;
    }
    with_helpers(
        r#"
code=0
mount -t sanstone wal "$1/files" -o "$options" 2>said || code=$?
[ "$code" = 32 ] || fail "$code: $(cat said)"
grep -q 'no volume.*"wal"\|"wal".*no' said || fail "$(cat said)"
mountpoint -q files && fail "it is mounted"
[ ! -e db.disk.pid ] || fail "its number is left"
"#,
    );
}
