//! Counts the instructions that an I/O takes with Sanstone and with the kernel's own target, in one virtual machine.
//! `make bench-kernel` runs it; it needs neither root nor a quiet machine.
//!
//! Parts: `ram` and `file`; `--seconds` of the guest's clock for each load, 10⁹ instructions each.

use harness::count::{LOADS, count};
use harness::samples::Call;
use harness::sanstone::binary;

fn main() {
    let call = Call::read(1, 1.0);
    let serve = "serve -c /tmp/sanstone.toml";
    for (backing, disk) in [("ram", "memory"), ("file", "a file in the page cache")] {
        if !call.wants(backing) {
            continue;
        }
        let Some(counted) = count(backing, &binary(), serve, call.seconds) else {
            return;
        };
        println!("\n| {disk} | Sanstone | LIO | ÷ |\n| --- | --- | --- | --- |");
        for ((name, _), counted) in LOADS.into_iter().zip(counted) {
            let (own, lio) = (counted.own, counted.lio);
            println!("| {name} | {own:.0} | {lio:.0} | {:.2} |", counted.ratio());
        }
    }
}
