//! Operation codes by name (SPC-4 6, SBC-4 5), for this disk's command table and for initiators that send commands.

#![expect(missing_docs, reason = "the names are those of the standards")]

pub const TEST_UNIT_READY: u8 = 0x00;
pub const REQUEST_SENSE: u8 = 0x03;
pub const READ_6: u8 = 0x08;
pub const WRITE_6: u8 = 0x0A;
pub const INQUIRY: u8 = 0x12;
pub const MODE_SELECT_6: u8 = 0x15;
pub const RESERVE_6: u8 = 0x16;
pub const RELEASE_6: u8 = 0x17;
pub const MODE_SENSE_6: u8 = 0x1A;
pub const START_STOP_UNIT: u8 = 0x1B;
pub const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1E;
pub const READ_CAPACITY_10: u8 = 0x25;
pub const READ_10: u8 = 0x28;
pub const WRITE_10: u8 = 0x2A;
pub const WRITE_AND_VERIFY_10: u8 = 0x2E;
pub const VERIFY_10: u8 = 0x2F;
pub const PRE_FETCH_10: u8 = 0x34;
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
pub const READ_DEFECT_DATA_10: u8 = 0x37;
pub const WRITE_SAME_10: u8 = 0x41;
pub const UNMAP: u8 = 0x42;
pub const SANITIZE: u8 = 0x48;
pub const LOG_SENSE: u8 = 0x4D;
pub const MODE_SELECT_10: u8 = 0x55;
pub const MODE_SENSE_10: u8 = 0x5A;
pub const PERSISTENT_RESERVE_IN: u8 = 0x5E;
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5F;
pub const THIRD_PARTY_COPY_OUT: u8 = 0x83;
pub const THIRD_PARTY_COPY_IN: u8 = 0x84;
pub const READ_16: u8 = 0x88;
pub const COMPARE_AND_WRITE: u8 = 0x89;
pub const WRITE_16: u8 = 0x8A;
pub const OR_WRITE_16: u8 = 0x8B;
pub const WRITE_AND_VERIFY_16: u8 = 0x8E;
pub const VERIFY_16: u8 = 0x8F;
pub const PRE_FETCH_16: u8 = 0x90;
pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
pub const WRITE_SAME_16: u8 = 0x93;
pub const WRITE_ATOMIC_16: u8 = 0x9C;
pub const SERVICE_ACTION_IN_16: u8 = 0x9E;
pub const REPORT_LUNS: u8 = 0xA0;
pub const MAINTENANCE_IN: u8 = 0xA3;
pub const READ_12: u8 = 0xA8;
pub const WRITE_12: u8 = 0xAA;
pub const WRITE_AND_VERIFY_12: u8 = 0xAE;
pub const VERIFY_12: u8 = 0xAF;
pub const READ_DEFECT_DATA_12: u8 = 0xB7;

/// Service actions of [`SERVICE_ACTION_IN_16`].
pub mod service_action_in_16 {
    pub const READ_CAPACITY: u8 = 0x10;
    pub const GET_LBA_STATUS: u8 = 0x12;
}

/// Service actions of [`PERSISTENT_RESERVE_IN`] (SPC-4 6.15.1).
pub mod reserve_in {
    pub const READ_KEYS: u8 = 0x00;
    pub const READ_RESERVATION: u8 = 0x01;
    pub const REPORT_CAPABILITIES: u8 = 0x02;
    pub const READ_FULL_STATUS: u8 = 0x03;
}

/// Service actions of [`PERSISTENT_RESERVE_OUT`] (SPC-4 6.16.2).
pub mod reserve_out {
    pub const REGISTER: u8 = 0x00;
    pub const RESERVE: u8 = 0x01;
    pub const RELEASE: u8 = 0x02;
    pub const CLEAR: u8 = 0x03;
    pub const PREEMPT: u8 = 0x04;
    pub const PREEMPT_AND_ABORT: u8 = 0x05;
    pub const REGISTER_AND_IGNORE_EXISTING_KEY: u8 = 0x06;
    pub const REGISTER_AND_MOVE: u8 = 0x07;
}
