//! The value types of settings in a configuration, such as sizes and times, and the errors about them.

mod block_size;
mod credentials;
mod error;
mod units;
mod wait;

pub use block_size::BlockSize;
pub use credentials::{
    ChapAlgorithm, ChapSettings, Credentials, imagine_credentials, imagined_credentials,
};
pub use error::ConfigError;
pub use units::{Rate, Size, Time};
pub use wait::Wait;
