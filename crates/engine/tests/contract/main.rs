//! The contract that both reactors keep, tested on both: each test is one async function that runs
//! on io_uring with real sockets and files, and in the simulation under several seeds.

/// Turns each named function into two tests: one on the ring, one in the simulation.
macro_rules! contract {
    ($($name:ident),* $(,)?) => {
        mod ring {
            $(#[test]
            fn $name() {
                crate::site::on_the_ring(stringify!($name), super::$name);
            })*
        }
        mod simulated {
            $(#[test]
            fn $name() {
                crate::site::in_the_simulation(super::$name);
            })*
        }
    };
}

mod blocking;
mod files;
mod lanes;
mod network;
mod share;
mod site;
mod store;
mod sync;
mod time;
