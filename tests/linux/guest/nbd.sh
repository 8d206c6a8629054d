# The kernel's own NBD client.

nbd_module() { modprobe nbd nbds_max=1 max_part=0 && until_true 200 test -b /dev/nbd0; }

# nbd_begin ADDRESS PORT [OPTION]...: the export is /dev/nbd0, once the kernel has its length. A request has more than the
# usual 30 s: on a busy machine an emulated one is slow.
nbd_begin() {
  local address=$1 port=$2
  shift 2
  nbd-client "$address" "$port" /dev/nbd0 -b 512 -t 300 "$@" || fail "no connection to $address $port"
  until_true 200 nbd_has_length
}
nbd_has_length() { [ "$(cat /sys/block/nbd0/size)" != 0 ]; }

# nbd_end: disconnects, with udev paused: if udev probed the disappearing disk, the kernel would log an error.
nbd_end() {
  undisturbed nbd-client -d /dev/nbd0 || fail 'it does not disconnect'
  until_true 200 not nbd_is_connected
}
nbd_is_connected() { [ -e /sys/block/nbd0/pid ]; }

# nbd_facts: what the server has reported.
nbd_facts() {
  local queue=/sys/block/nbd0/queue
  echo "size=$(blockdev --getsize64 /dev/nbd0) logical=$(cat $queue/logical_block_size)" \
    "cache=$(cat $queue/write_cache) fua=$(cat $queue/fua)" \
    "discards=$([ "$(cat $queue/discard_max_bytes)" != 0 ] && echo 1)"
}

# nbd_verify: writes read back correctly, one at a time and with several and with many in flight, and of all lengths, with
# concurrent trims of the other half.
nbd_verify() {
  for depth in 1 16 64; do
    fio --filename=/dev/nbd0 --direct=1 --ioengine=libaio --iodepth=$depth --blockalign=512 --randseed=$depth \
      --bssplit=512/25:3k/10:4k/15:24k/15:128k/20:1m/15 --output-format=terse --name=verify --rw=randrw --size=8M \
      --io_size=8M --verify=crc32c --verify_fatal=1 --verify_state_save=0 --name=trim --rw=randtrim --offset=8M \
      --size=8M --io_size=8M >/tmp/fio.nbd 2>&1 || {
      cat /tmp/fio.nbd
      fail "fio on /dev/nbd0 at depth $depth"
    }
    ! grep 'verify:' /tmp/fio.nbd || fail "fio has read something else at depth $depth"
  done
}

# nbd_file_system: creates, trims and checks files.
nbd_file_system() {
  mkfs.ext4 -q /dev/nbd0 || fail 'mkfs.ext4'
  mkdir -p /mnt/nbd
  mount /dev/nbd0 /mnt/nbd || fail 'no mount'
  fill /mnt/nbd/file 16
  tree /mnt/nbd/tree || fail 'files'
  sync
  rm /mnt/nbd/file
  sync
  fstrim -v /mnt/nbd || fail 'fstrim'
  umount /mnt/nbd || fail 'umount'
  mount /dev/nbd0 /mnt/nbd || fail 'no second mount'
  (cd /mnt/nbd/tree && sha256sum -c -s sums) || fail 'a file has changed'
  umount /mnt/nbd
  e2fsck -f -n /dev/nbd0 || fail 'the file system is damaged'
}

# nbd_write [FIO OPTION]...: sixteen writes of 4 KiB each.
nbd_write() {
  fio --name=write --filename=/dev/nbd0 --direct=1 --rw=write --bs=4k --size=64k "$@" >/tmp/fio.nbd 2>&1 || {
    cat /tmp/fio.nbd
    fail "fio $*"
  }
}
