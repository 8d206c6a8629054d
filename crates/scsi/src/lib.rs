//! A SCSI disk (SAM-5, SPC-4, SBC-3), pure: a CDB goes in, what to do with the medium or a
//! finished reply comes out. Transports and storage live elsewhere.
#![forbid(unsafe_code)]
