//! `sanstone attach` on this machine's kernel: a volume as a file, what programs, a loop device and a file
//! system do with it, and what becomes of them when it ends. It needs root and `/dev/fuse`;
//! one of them runs `sanstone` as a user without rights.

mod asked;
mod attached;
mod content;
mod death;
mod failures;
mod file_system;
mod held;
mod in_use;
mod lanes;
mod links;
mod memory;
mod mount_helper;
mod mounted;
mod orphans;
mod refusals;
mod reused;
mod stalled;
mod stop;
mod truncated;
mod without_root;
