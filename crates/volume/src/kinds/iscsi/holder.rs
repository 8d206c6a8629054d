//! Who holds a persistent reservation, as the target reports it: another initiator, or one of our own ports.

use std::rc::Rc;

use iscsi::Isid;

use super::{
    cdb,
    claim::{ClaimAnswer, be},
    nexus::Nexus,
    path::Path,
    session::Data,
    unit::RemoteUnit,
};

impl RemoteUnit {
    /// Who holds the reservation, for messages.
    pub(super) async fn holder(&self, nexus: &Rc<Nexus>) -> String {
        match self.holding_port(nexus).await {
            Some(port) => format!("the initiator {port}, which has reserved it"),
            None => "another initiator, which has reserved it".to_owned(),
        }
    }

    /// The path whose initiator port holds the reservation, perhaps since before a restart, when it may have been a path
    /// that we have not now. Asks over `nexus`.
    pub(super) async fn holding_path(&self, nexus: &Rc<Nexus>) -> Option<&Path> {
        let holder = self.holding_port(nexus).await?;
        let name = &self.config().initiator_name;
        let mut ports = self.paths.ports.iter();
        ports.find(|path| is_port(&holder, name, path.isid()))
    }

    /// The index of that path. Asks over any usable nexus.
    pub(super) async fn holding_index(&self) -> Option<usize> {
        let nexus = self.paths.usable().next()?;
        let path = self.holding_path(&nexus).await?;
        Some(path.id().0)
    }

    async fn holding_port(&self, nexus: &Rc<Nexus>) -> Option<String> {
        const LEN: u16 = 4096;
        let read = cdb::persistent_reserve_in(cdb::READ_FULL_STATUS, LEN);
        match self.tell(nexus, &read, Data::In(LEN.into())).await {
            Ok(ClaimAnswer::Good(data)) => holder_of(&data),
            _ => None,
        }
    }
}

/// The initiator port that holds the reservation, from the data of READ FULL STATUS (SPC-4 6.15.5).
fn holder_of(data: &[u8]) -> Option<String> {
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
            return Some(name.chars().filter(|c| !c.is_control()).take(256).collect());
        }
        rest = after;
    }
}

/// Whether `port` names the initiator port of this name and ISID, `<iSCSI name>,i,0x<ISID>` (RFC 7143 §4.4.4).
fn is_port(port: &str, name: &str, isid: Isid) -> bool {
    port.split_once(",i,0x").is_some_and(|(of, digits)| {
        of.eq_ignore_ascii_case(name) && u64::from_str_radix(digits, 16) == Ok(be(&isid.0))
    })
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
        assert_eq!(holder_of(&data).as_deref(), Some("iqn.b:y,i,0x2"));
        assert_eq!(holder_of(&data[..40]), None);
    }

    #[test]
    fn a_port_is_known_by_its_name_and_its_isid() {
        let isid = Isid([0x80, 0, 0, 0xab, 0, 1]);
        for (port, is_ours) in [
            ("iqn.a:x,i,0x800000ab0001", true),
            ("iqn.A:X,i,0x800000AB0001", true),
            ("iqn.a:x,i,0x800000ab0002", false),
            ("iqn.a:xy,i,0x800000ab0001", false),
            ("iqn.a:x", false),
            ("iqn.a:x,i,0x", false),
        ] {
            assert_eq!(is_port(port, "iqn.a:x", isid), is_ours, "{port}");
        }
    }

    proptest! {
        #[test]
        fn a_status_of_any_bytes_does_no_harm(data in prop::collection::vec(any::<u8>(), 0..200)) {
            holder_of(&data);
        }
    }
}
