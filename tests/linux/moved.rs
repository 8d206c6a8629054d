//! A target that has moved: open-iscsi goes where it is sent, for now or for good.

use crate::{Check, Expected, QUIET, host::Host};

const CLOSED: &[Expected] = &[(
    "detected conn error (1020)",
    "the old place closes the connection whose login it has sent elsewhere",
)];

#[test]
fn login_at_the_old_place_shows_the_disk_at_the_new_one() {
    let there = Host::serve("moved", &Host::file(16));
    for permanent in [false, true] {
        let here = Host::redirect(&there, permanent);
        let Some(check) = Check::begin(&QUIET, CLOSED) else {
            return;
        };
        let ([old, _], iqn) = (here.portals, &here.iqn);
        let found = check.run(&format!("iscsiadm -m discovery -t sendtargets -p {old}"));
        let found = found.success();
        assert!(found.contains(&format!("{old},1 {iqn}")), "{found}");
        check
            .run(&format!(
                "iscsiadm -m node -T {iqn} -p {old} -l && \
                 there() {{ [ -n \"$(disks {iqn})\" ]; }} && until_true 200 there"
            ))
            .success();
        let io = format!("write_and_verify $(disks {iqn}) 64k libaio");
        check.run(&io).success();
        here.log_with("login redirected");
        check.end();
    }
}
