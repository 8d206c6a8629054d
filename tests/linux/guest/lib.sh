# Functions for the checks' commands. On failure each ends the calling command with a line that says what was expected.

fail() { echo "FAILED: $*"; exit 1; }

# node IQN PORTAL [SETTING=VALUE]...: a node record with these settings, without discovery.
node() {
  local iqn=$1 portal=$2 setting settings=
  shift 2
  iscsiadm -m node -o new -T "$iqn" -p "$portal" >/dev/null || fail "no record of $iqn"
  for setting; do settings="$settings -n ${setting%%=*} -v ${setting#*=}"; done
  # In one call, because starting a program is slow under emulation.
  [ -z "$settings" ] || iscsiadm -m node -o update -T "$iqn" -p "$portal" $settings ||
    fail "not taken: $settings"
}

# login IQN PORTAL [SETTING=VALUE]...: logs in and waits for the disk of LUN 0.
login() {
  node "$@"
  iscsiadm -m node -T "$1" -p "$2" -l || fail "no login to $1"
  disk "$1" "$2" >/dev/null
}

# logout IQN PORTAL
logout() {
  undisturbed iscsiadm -m node -T "$1" -p "$2" -u || fail "no logout from $1"
}

# undisturbed COMMAND...: with udev paused. udev probes a disk each time a writer closes it, and if the disk disappears
# during that, the kernel logs errors.
undisturbed() {
  local code=0
  resume
  udevadm control --stop-exec-queue
  "$@" || code=$?
  udevadm control --start-exec-queue
  resume
  return $code
}

# resume: waits until udev's queue is empty. Now and then udev 252 does not restart its queue until it is told a second
# time; the next login then had no disk for two minutes.
resume() {
  local tries=0
  until udevadm settle --timeout=10; do
    tries=$((tries + 1))
    [ $tries -lt 20 ] || fail 'udev does not go on'
    udevadm control --stop-exec-queue
    udevadm control --start-exec-queue
  done
}

# disk IQN PORTAL [LUN]: prints the disk, /dev/sdX, once udev knows it.
disk() {
  local link=/dev/disk/by-path/ip-$2-iscsi-$1-lun-${3:-0} tries=0
  while [ ! -e "$link" ]; do
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || fail "udev made no $link"
    sleep 0.1
  done
  realpath "$link"
}

# disks IQN: prints the disks of all sessions of a target, a line each, in order of their sessions.
disks() {
  local session device
  for session in /sys/class/iscsi_session/session*; do
    [ "$(cat "$session/targetname" 2>/dev/null)" = "$1" ] || continue
    for device in "$session"/device/target*/*/block/*; do
      [ -e "$device" ] && echo "/dev/${device##*/}"
    done
  done
}

# until_true SECONDS COMMAND...: waits until the command succeeds.
until_true() {
  local end=$(($(cut -d. -f1 /proc/uptime) + $1)) seconds=$1
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ] || fail "not so after $seconds s: $*"
    sleep 0.2
  done
}

equals() { # equals WHAT EXPECTED FOUND
  [ "$2" = "$3" ] || fail "$1: expected $2, found $3"
}

# Restores the machine to its state before a check, even one that failed half-way.
tidy() {
  local mounted
  grep ' /mnt/' /proc/mounts | cut -d ' ' -f 2 | while read -r mounted; do umount "$mounted"; done
  if pidof multipathd >/dev/null; then
    multipath -F
    killall multipathd
    until_true 200 gone multipathd
  fi
  if nbd_is_connected; then nbd_end; fi
  if iscsiadm -m session >/dev/null 2>&1; then undisturbed iscsiadm -m node -U all; fi
  rm -rf /etc/iscsi/nodes /etc/iscsi/send_targets /mnt/*
  ! iscsiadm -m session 2>/dev/null || fail 'a session is left'
}

not() { ! "$@"; }

has_module() { modprobe -n -q "$1"; } # has_module NAME: this kernel has it

# gone NAME: no such program runs; zombies do not count.
gone() {
  local pid
  for pid in $(pidof "$1"); do
    grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null || return 1
  done
}

# facts DISK: what the kernel and udev know of a disk, NAME=VALUE.
facts() {
  local sys=/sys/block/${1##*/}
  echo "size=$(blockdev --getsize64 "$1")"
  echo "ro=$(blockdev --getro "$1")"
  echo "logical=$(cat "$sys/queue/logical_block_size")"
  echo "physical=$(cat "$sys/queue/physical_block_size")"
  echo "cache=$(cat "$sys/queue/write_cache")"
  echo "fua=$(cat "$sys/queue/fua")"
  echo "vendor=$(cat "$sys/device/vendor")"
  echo "model=$(cat "$sys/device/model")"
  echo "wwid=$(cat "$sys/device/wwid")"
  echo "serial=$(sg_inq --page=sn --raw "$1" | tail -c +5)"
  echo "by-id=$(udevadm info --query=property --name="$1" | sed -n 's/^ID_SERIAL=//p')"
}
