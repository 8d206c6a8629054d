//! The values that settings have in a configuration, as a size or a time, and what is said of one that
//! is wrong.

mod block_size;
mod credentials;
mod error;
mod units;

pub use block_size::BlockSize;
pub use credentials::{ChapAlgorithm, ChapSettings, Credentials};
pub use error::ConfigError;
pub use units::{Rate, Size, Time};
