# A volume as a local file. Its backing file is on a separate file system, whose device counts the flushes.

fuse_begin() {
  modprobe fuse
  mkdir -p /mnt/back /tmp/fuse
  truncate -s 64M /tmp/back.img
  losetup -f --show /tmp/back.img >/tmp/fuse/loop
  mkfs.ext4 -q "$(cat /tmp/fuse/loop)" && mount "$(cat /tmp/fuse/loop)" /mnt/back || fail 'no file system'
  cat >/tmp/fuse/sanstone.toml <<'END'
state = "state"
[volume.db]
file = { path = "/mnt/back/db.img", size = "32MiB", cache = "write-back" }
END
  sanstone attach -c /tmp/fuse/sanstone.toml db --fuse /tmp/fuse/disk >/tmp/fuse/log 2>&1 </dev/null &
  until_true 200 grep -q ' attached ' /tmp/fuse/log
  cat /tmp/fuse/log
  # Allocates all blocks, so that later flushes are only the requested ones.
  dd if=/dev/urandom of=/tmp/fuse/disk bs=1M count=32 iflag=fullblock oflag=direct conv=notrunc 2>/dev/null || fail "no write"
  sync
}

# fuse_flushes COMMAND...: prints how often the device below was flushed during the command.
fuse_flushes() {
  local stat before
  stat=/sys/block/$(basename "$(cat /tmp/fuse/loop)")/stat
  before=$(awk '{ print $16 }' "$stat")
  "$@"
  awk -v before="$before" '{ print $16 - before }' "$stat"
}

fuse_write() { # fuse_write [FIO OPTION]...: 32 writes of 4 KiB each
  fio --name=write --filename=/tmp/fuse/disk --rw=write --bs=4k --size=128k "$@" >/tmp/fio.fuse 2>&1 || {
    cat /tmp/fio.fuse
    fail "fio $*"
  }
}

fuse_end() {
  killall -TERM sanstone
  until_true 200 gone sanstone
  cat /tmp/fuse/log
  ! grep -q ' ERROR ' /tmp/fuse/log || fail 'an error'
  grep -q stopped /tmp/fuse/log || fail 'it did not end in order'
  umount /mnt/back && losetup -d "$(cat /tmp/fuse/loop)" || fail 'the backing stays'
  rm -r /tmp/fuse /tmp/back.img
}
