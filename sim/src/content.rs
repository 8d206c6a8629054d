//! The content of a sector: its own address and the version that wrote it, spread over all its bytes, so that torn,
//! misplaced, stale or foreign data is detected and can be named.

/// The unit of the model, in bytes; no disk here tears it.
pub const SECTOR_BYTES: usize = 512;

/// The version of a sector that reads as zeroes: never written, or discarded.
pub const ZEROES: u64 = 0;

/// In words: the simulator spends much of its time here and on comparing them.
fn content(sector: u64, version: u64) -> [[u8; 8]; SECTOR_BYTES / 8] {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    const STEP: u64 = 0xbf58_476d_1ce4_e5b9;
    let mut word = (version ^ sector.rotate_left(32)).wrapping_mul(SPREAD);
    let mut words = [[0; 8]; SECTOR_BYTES / 8];
    for bytes in &mut words {
        word = word.wrapping_add(STEP);
        *bytes = word.to_le_bytes();
    }
    words[0] = sector.to_le_bytes();
    words[1] = version.to_le_bytes();
    words
}

/// Appends the bytes of `sector` as `version` writes it.
pub fn append(sector: u64, version: u64, to: &mut Vec<u8>) {
    if version == ZEROES {
        to.resize(to.len() + SECTOR_BYTES, 0);
        return;
    }
    to.extend_from_slice(content(sector, version).as_flattened());
}

/// The bytes of `sectors` as `version` writes them.
pub fn bytes(version: u64, sectors: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    sectors.for_each(|sector| append(sector, version, &mut bytes));
    bytes
}

/// The versions that `bytes` contains, for the sectors from `first` on.
#[track_caller]
pub fn versions(first: u64, bytes: &[u8]) -> Vec<u64> {
    let sectors = (first..).zip(bytes.chunks(SECTOR_BYTES));
    let versions = sectors.map(|(sector, bytes)| version_of(sector, bytes));
    versions
        .map(|version| version.unwrap_or_else(|wrong| panic!("{wrong}")))
        .collect()
}

/// Identifies the version of `sector` that the bytes are.
///
/// # Errors
/// A description, if the bytes are no version of this sector.
pub fn version_of(sector: u64, bytes: &[u8]) -> Result<u64, String> {
    let word_at = |index: usize| {
        let bytes = &bytes[8 * index..8 * index + 8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    let (address, version) = (word_at(0), word_at(1));
    if address == 0 && version == ZEROES && bytes == [0; SECTOR_BYTES] {
        return Ok(ZEROES);
    }
    if address != sector {
        return Err(format!(
            "it holds sector {address} in version {version}: data in the wrong place"
        ));
    }
    let whole = content(sector, version);
    let whole = whole.as_flattened();
    if bytes == whole {
        return Ok(version);
    }
    let damaged = bytes
        .iter()
        .zip(whole)
        .position(|(byte, good)| byte != good);
    let damaged = damaged.unwrap_or(SECTOR_BYTES);
    Err(format!("version {version} is damaged at byte {damaged}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_knows_its_place_its_version_and_damage() {
        for (sector, version) in [(0, 1), (7, 3), (7, ZEROES), (1 << 40, u64::MAX)] {
            let mut bytes = Vec::new();
            append(sector, version, &mut bytes);
            assert_eq!(bytes.len(), SECTOR_BYTES);
            assert_eq!(version_of(sector, &bytes), Ok(version));
            if version != ZEROES {
                assert!(version_of(sector + 1, &bytes).is_err());
            }
            bytes[300] ^= 1;
            assert!(version_of(sector, &bytes).is_err());
        }
    }
}
