//! The status of a Login Response (RFC 7143 §11.13.5).

/// Status-Class and Status-Detail of a Login Response, as one number: class in the high byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoginStatus(pub u16);

impl LoginStatus {
    /// Login proceeds or is done.
    pub const SUCCESS: LoginStatus = LoginStatus(0x0000);
    /// The target has moved for now; TargetAddress says where.
    pub const MOVED_TEMPORARILY: LoginStatus = LoginStatus(0x0101);
    /// The target has moved permanently; TargetAddress says where.
    pub const MOVED_PERMANENTLY: LoginStatus = LoginStatus(0x0102);
    /// The initiator broke the protocol.
    pub const INITIATOR_ERROR: LoginStatus = LoginStatus(0x0200);
    /// Authentication failed, or no common method.
    pub const AUTHENTICATION_FAILURE: LoginStatus = LoginStatus(0x0201);
    /// The initiator may not use this target.
    pub const AUTHORIZATION_FAILURE: LoginStatus = LoginStatus(0x0202);
    /// There is no such target here.
    pub const NOT_FOUND: LoginStatus = LoginStatus(0x0203);
    /// The target was removed permanently.
    pub const TARGET_REMOVED: LoginStatus = LoginStatus(0x0204);
    /// No common protocol version.
    pub const UNSUPPORTED_VERSION: LoginStatus = LoginStatus(0x0205);
    /// The session accepts no more connections.
    pub const TOO_MANY_CONNECTIONS: LoginStatus = LoginStatus(0x0206);
    /// InitiatorName or TargetName is missing.
    pub const MISSING_PARAMETER: LoginStatus = LoginStatus(0x0207);
    /// The connection cannot be part of this session.
    pub const CANNOT_INCLUDE_IN_SESSION: LoginStatus = LoginStatus(0x0208);
    /// This SessionType is not offered.
    pub const SESSION_TYPE_NOT_SUPPORTED: LoginStatus = LoginStatus(0x0209);
    /// The TSIH names no session.
    pub const SESSION_DOES_NOT_EXIST: LoginStatus = LoginStatus(0x020a);
    /// A PDU other than a Login Request arrived.
    pub const INVALID_DURING_LOGIN: LoginStatus = LoginStatus(0x020b);
    /// The target failed.
    pub const TARGET_ERROR: LoginStatus = LoginStatus(0x0300);
    /// The target is not serving at the moment.
    pub const SERVICE_UNAVAILABLE: LoginStatus = LoginStatus(0x0301);
    /// The target has no room for the session.
    pub const OUT_OF_RESOURCES: LoginStatus = LoginStatus(0x0302);

    /// Status-Class: 0 success, 1 redirection, 2 initiator error, 3 target error.
    pub fn class(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Status-Detail within the class.
    pub fn detail(self) -> u8 {
        self.0 as u8
    }
}

impl std::fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let meaning = match *self {
            LoginStatus::SUCCESS => "success",
            LoginStatus::MOVED_TEMPORARILY => "target moved temporarily",
            LoginStatus::MOVED_PERMANENTLY => "target moved permanently",
            LoginStatus::INITIATOR_ERROR => "initiator error",
            LoginStatus::AUTHENTICATION_FAILURE => "authentication failure",
            LoginStatus::AUTHORIZATION_FAILURE => "initiator not allowed to use this target",
            LoginStatus::NOT_FOUND => "target not found",
            LoginStatus::TARGET_REMOVED => "target removed",
            LoginStatus::UNSUPPORTED_VERSION => "unsupported version",
            LoginStatus::TOO_MANY_CONNECTIONS => "too many connections",
            LoginStatus::MISSING_PARAMETER => "missing parameter",
            LoginStatus::CANNOT_INCLUDE_IN_SESSION => "cannot include in session",
            LoginStatus::SESSION_TYPE_NOT_SUPPORTED => "session type not supported",
            LoginStatus::SESSION_DOES_NOT_EXIST => "session does not exist",
            LoginStatus::INVALID_DURING_LOGIN => "PDU invalid during login",
            LoginStatus::TARGET_ERROR => "target error",
            LoginStatus::SERVICE_UNAVAILABLE => "service unavailable",
            LoginStatus::OUT_OF_RESOURCES => "out of resources",
            _ => "unknown status",
        };
        write!(f, "{meaning} (status {:#06x})", self.0)
    }
}
