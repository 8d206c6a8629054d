//! Who holds a persistent reservation, as the target reports it.

/// The reservation holder in the data of READ FULL STATUS (SPC-4 6.14.5).
pub(super) fn holder_of(data: &[u8]) -> Option<String> {
    const HEADER_BYTES: usize = 8;
    const DESCRIPTOR_BYTES: usize = 24;
    const R_HOLDER: u8 = 0x01;
    let mut rest = data.get(HEADER_BYTES..)?;
    loop {
        let descriptor = rest.get(..DESCRIPTOR_BYTES)?;
        let id_len = be(&descriptor[20..24]) as usize;
        let (id, after) = rest[DESCRIPTOR_BYTES..].split_at_checked(id_len)?;
        if descriptor[12] & R_HOLDER != 0 {
            // The iSCSI name follows four bytes and is padded with zeroes (SPC-4 7.6.4.6).
            let name = String::from_utf8_lossy(id.get(4..)?);
            let name: String = name.chars().filter(|c| !c.is_control()).take(256).collect();
            return Some(format!("the initiator {name}, which has reserved it"));
        }
        rest = after;
    }
}

/// A big-endian number of up to eight bytes.
pub(super) fn be(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_holder_is_found_behind_other_registrants() {
        let mut data = vec![0; 8];
        for (name, holder) in [("iqn.a:x,i,0x1", 0), ("iqn.b:y,i,0x2", 1)] {
            let mut id = vec![0x45, 0, 0, 0];
            id.extend(name.bytes());
            id.resize(24, 0);
            data.extend([0; 12]);
            data.extend([holder, 6, 0, 0, 0, 0, 0, 1]);
            data.extend((id.len() as u32).to_be_bytes());
            data.extend(id);
        }
        let said = holder_of(&data).expect("one holds it");
        assert!(
            said.contains("the initiator iqn.b:y,i,0x2, which"),
            "{said}"
        );
        assert_eq!(holder_of(&data[..40]), None);
    }

    proptest! {
        #[test]
        fn a_status_of_any_bytes_does_no_harm(data in prop::collection::vec(any::<u8>(), 0..200)) {
            holder_of(&data);
        }
    }
}
