//! The iSCSI protocol of RFC 7143, pure: bytes and time go in, bytes and events come out.
//! No sockets, no clock, no threads; drivers own those.
#![forbid(unsafe_code)]
