//! A LUN that becomes another disk while the volume is open: nothing is written there.

use engine::{Buf, Payload, task::join_all};

use super::*;

const REPORTED_LUNS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x3f, 0x0e];
const INQUIRY_DATA_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x3f, 0x03];
const I_T_NEXUS_LOSS: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x07];

/// NAA 6h, of a logical unit, with this last byte.
fn designators(last: u8) -> Vec<u8> {
    let mut designators = vec![1, 3, 0, 16, 0x60];
    designators.resize(19, 0);
    designators.push(last);
    designators
}

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 512]).into()
}

/// Opens a disk, has the LUN become another one, with `attention` for the next command or with the loss of the session,
/// writes, and has it become the first one again.
fn becomes_another(attention: Option<[u8; 3]>) {
    let foreign = Foreign::new(Claims {
        designators: designators(1),
        ..Claims::default()
    });
    foreign.with(async |disk, foreign| {
        let write = |byte| disk.write(0, block(byte), Durability::Cached);
        write(1).await.expect("it is the disk");
        foreign.designators.replace(Some(designators(2)));
        match attention {
            None => foreign.drop_connections(),
            Some(sense) => foreign.answer(once(sense)),
        }
        for _ in 0..2 {
            let error = write(2).await.expect_err("it is another disk");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            for name in [
                "naa.60000000000000000000000000000001",
                "naa.60000000000000000000000000000002",
            ] {
                assert!(error.to_string().contains(name), "{error}");
            }
            disk.read(0, 512).await.expect_err("so are reads");
        }
        assert_eq!(foreign.first_byte(0), 1);
        foreign.designators.take();
        // The login is tried again a second later at most.
        time::sleep(Duration::from_secs(2)).await;
        write(3).await.expect("it is the disk again");
        assert_eq!(foreign.first_byte(0), 3);
    });
}

#[test]
fn a_lun_that_is_another_disk_at_a_later_login_is_not_written() {
    becomes_another(None);
}

#[test]
fn a_lun_that_becomes_another_disk_is_not_written_once_the_target_tells_of_it() {
    for attention in [REPORTED_LUNS_CHANGED, INQUIRY_DATA_CHANGED, I_T_NEXUS_LOSS] {
        becomes_another(Some(attention));
    }
}

/// The target tells of a change only once, to the first command.
#[test]
fn commands_in_flight_when_the_lun_became_another_disk_do_not_count() {
    let foreign = Foreign::new(Claims {
        designators: designators(1),
        ..Claims::default()
    });
    foreign.with(async |disk, foreign| {
        let write = |at: u64| disk.write(512 * at, block(1), Durability::Cached);
        write(0).await.expect("it is the disk");
        foreign.designators.replace(Some(designators(2)));
        foreign.answer(once(REPORTED_LUNS_CHANGED));
        for written in join_all((0..4).map(write).map(Box::pin)).await {
            let error = written.expect_err("it is another disk");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        }
    });
}

#[test]
fn a_disk_that_stays_what_it_is_goes_on() {
    for attention in [REPORTED_LUNS_CHANGED, INQUIRY_DATA_CHANGED, I_T_NEXUS_LOSS] {
        let foreign = Foreign::new(Claims {
            designators: designators(1),
            ..Claims::default()
        });
        foreign.with(async |disk, foreign| {
            foreign.answer(once(attention));
            let written = disk.write(0, block(1), Durability::Cached).await;
            written.expect("it is sent again");
            disk.flush().await.expect("nothing is lost");
            assert_eq!(foreign.logins.get(), 1);
        });
    }
}
