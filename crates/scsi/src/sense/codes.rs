//! Additional sense codes by name (SPC-4, ASC and ASCQ assignments): those this disk sends, and those our initiator
//! acts on.

/// An additional sense code with its qualifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Asc {
    /// ADDITIONAL SENSE CODE.
    pub code: u8,
    /// ADDITIONAL SENSE CODE QUALIFIER.
    pub qualifier: u8,
}

macro_rules! codes {
    ($($name:ident = ($code:literal, $qualifier:literal);)*) => {
        impl Asc {
            $(
                #[doc = concat!("`", stringify!($code), "`, `", stringify!($qualifier), "`.")]
                pub const $name: Asc = Asc { code: $code, qualifier: $qualifier };
            )*
        }
    };
}

codes! {
    NO_ADDITIONAL_SENSE = (0x00, 0x00);
    CAUSE_NOT_REPORTABLE = (0x04, 0x00);
    MANUAL_INTERVENTION_REQUIRED = (0x04, 0x03);
    SANITIZE_IN_PROGRESS = (0x04, 0x1B);
    UNREACHABLE_COPY_TARGET = (0x08, 0x04);
    WRITE_ERROR = (0x0C, 0x00);
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = (0x0E, 0x03);
    UNRECOVERED_READ_ERROR = (0x11, 0x00);
    PARAMETER_LIST_LENGTH_ERROR = (0x1A, 0x00);
    MISCOMPARE_DURING_VERIFY = (0x1D, 0x00);
    INVALID_COMMAND_OPERATION_CODE = (0x20, 0x00);
    LBA_OUT_OF_RANGE = (0x21, 0x00);
    INVALID_FIELD_IN_CDB = (0x24, 0x00);
    LOGICAL_UNIT_NOT_SUPPORTED = (0x25, 0x00);
    INVALID_FIELD_IN_PARAMETER_LIST = (0x26, 0x00);
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = (0x26, 0x04);
    TOO_MANY_TARGET_DESCRIPTORS = (0x26, 0x06);
    UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE = (0x26, 0x07);
    TOO_MANY_SEGMENT_DESCRIPTORS = (0x26, 0x08);
    UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE = (0x26, 0x09);
    WRITE_PROTECTED = (0x27, 0x00);
    SPACE_ALLOCATION_FAILED = (0x27, 0x07);
    MEDIUM_MAY_HAVE_CHANGED = (0x28, 0x00);
    POWER_ON_OR_RESET = (0x29, 0x00);
    POWER_ON = (0x29, 0x01);
    SCSI_BUS_RESET = (0x29, 0x02);
    BUS_DEVICE_RESET = (0x29, 0x03);
    DEVICE_INTERNAL_RESET = (0x29, 0x04);
    NEXUS_LOSS = (0x29, 0x07);
    MODE_PARAMETERS_CHANGED = (0x2A, 0x01);
    RESERVATIONS_PREEMPTED = (0x2A, 0x03);
    RESERVATIONS_RELEASED = (0x2A, 0x04);
    REGISTRATIONS_PREEMPTED = (0x2A, 0x05);
    CAPACITY_DATA_HAS_CHANGED = (0x2A, 0x09);
    COMMANDS_CLEARED_BY_ANOTHER_INITIATOR = (0x2F, 0x00);
    SANITIZE_COMMAND_FAILED = (0x31, 0x03);
    SAVING_PARAMETERS_NOT_SUPPORTED = (0x39, 0x00);
    MEDIUM_NOT_PRESENT = (0x3A, 0x00);
    LOGICAL_UNIT_FAILURE = (0x3E, 0x01);
    INQUIRY_DATA_HAS_CHANGED = (0x3F, 0x03);
    REPORTED_LUNS_DATA_HAS_CHANGED = (0x3F, 0x0E);
    INTERNAL_TARGET_FAILURE = (0x44, 0x00);
    PROTOCOL_SERVICE_CRC_ERROR = (0x47, 0x05);
    INVALID_MESSAGE_ERROR = (0x49, 0x00);
    MEDIUM_REMOVAL_PREVENTED = (0x53, 0x02);
    INSUFFICIENT_REGISTRATION_RESOURCES = (0x55, 0x04);
}
