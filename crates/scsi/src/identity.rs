//! How a logical unit identifies itself: names for people, and names that never change.

/// The names of a logical unit. They must stay the same for the life of the volume and on every path, or initiators
/// take it for a different disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// T10 vendor identification, 8 characters: `SANSTONE`.
    pub vendor: String,
    /// Product identification, up to 16 printable ASCII characters.
    pub product: String,
    /// Product revision, up to 4 printable ASCII characters.
    pub revision: String,
    /// Unit serial number, printable ASCII, up to 64 characters.
    pub serial: String,
    /// The volume's UUID; the NAA name derives from it.
    pub uuid: [u8; 16],
    /// The target port through which this logical unit is reached.
    pub port: TargetPort,
}

/// A target port as identified in VPD page 83h (SPC-4, device identification VPD page).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPort {
    /// iSCSI target name, for example `iqn.2026-11.io.sanstone:t0`.
    pub target_name: String,
    /// Target portal group tag: the port is `<target name>,t,0x<tag>` (RFC 7143 §4.4.4).
    pub portal_group_tag: u16,
    /// Relative target port identifier, from 1.
    pub relative_port: u16,
    /// Target port group (ALUA), from 1.
    pub port_group: u16,
}

impl Identity {
    /// The 16-byte NAA name (SPC-4, NAA IEEE registered extended, 6h). Sanstone has no IEEE company ID, so a locally
    /// administered one is used, which is assigned to nobody; the remaining 100 bits are the last bits of the UUID.
    pub fn naa(&self) -> [u8; 16] {
        const NAA_REGISTERED_EXTENDED: u128 = 6;
        const LOCAL_COMPANY_ID: u128 = 0x02_53_53;
        const UUID_BITS: u32 = 100;
        let uuid = u128::from_be_bytes(self.uuid) & ((1 << UUID_BITS) - 1);
        (NAA_REGISTERED_EXTENDED << 124 | LOCAL_COMPANY_ID << UUID_BITS | uuid).to_be_bytes()
    }
}

/// `text` as an ASCII field of `N` bytes: left-aligned, padded with spaces, truncated at `N` (SPC-4, ASCII data field
/// requirements). Unprintable characters become spaces.
pub(crate) fn ascii_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        if (0x20..=0x7E).contains(&byte) {
            *place = byte;
        }
    }
    field
}
