# Sanstone on this machine itself.

INSIDE='iqn.2026-11.io.sanstone:inside 127.0.0.1:3260'

# A file on tmpfs, which does not support direct I/O, and everything that a data disk does.
serve_inside() {
  mkdir -p /tmp/inside
  cat >/tmp/inside/sanstone.toml <<'END'
[volume.disk]
file = { path = "disk.img", size = "32MiB", cache = "write-back" }
[target."iqn.2026-11.io.sanstone:inside"]
portals = ["127.0.0.1:3260"]
luns = ["disk"]
allow = ["*"]
END
  sanstone check -c /tmp/inside/sanstone.toml || fail 'check'
  # As a service manager does: a bare kernel allows 4,096 open files.
  ulimit -n 65536
  sanstone serve -c /tmp/inside/sanstone.toml >/tmp/inside/log 2>&1 </dev/null &
  until_true 200 grep -q 'serving portal=127.0.0.1:3260' /tmp/inside/log
  iscsiadm -m discovery -t sendtargets -p 127.0.0.1:3260 || fail 'discovery'
  iscsiadm -m node -T ${INSIDE% *} -p ${INSIDE#* } --login || fail 'login'
}

discard_inside() {
  local dev
  dev=$(disk $INSIDE)
  blkdiscard "$dev" && zeroes "$dev" 0 4
}

stop_inside() {
  killall -TERM sanstone
  until_true 200 gone sanstone
  cat /tmp/inside/log
  grep -q stopped /tmp/inside/log || fail 'it did not end in order'
  ! grep -E ' (WARN|ERROR) ' /tmp/inside/log || fail 'a warning'
}

demo_inside() {
  sanstone demo --rows 2000 --no-limit --dir /tmp --report /tmp/report.html --json /tmp/demo.json
}
