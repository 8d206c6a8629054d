//! What is to be said about the kernel of this machine.

/// The first version that sends direct writes to a FUSE file in parallel.
const PARALLEL_WRITES: (u32, u32) = (6, 2);

/// Advice about a kernel of this release, as `uname -r` writes it, if it is too old for something.
pub(crate) fn note(release: &str) -> Option<String> {
    let (major, minor) = PARALLEL_WRITES;
    (version(release)? < PARALLEL_WRITES).then(|| {
        format!(
            "this kernel, Linux {release}, sends the direct writes to a file of `sanstone attach --fuse` one at a \
             time; Linux {major}.{minor} and later send them in parallel. `attach --nbd` and `serve` are as fast on \
             any kernel"
        )
    })
}

/// Its first two numbers.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_sends_writes_one_at_a_time_is_named() {
        for release in ["6.1.0-18-amd64", "6.1.172", "5.15.0-91-generic", "6.1-rc3"] {
            let note = note(release).expect(release);
            assert!(note.contains(&format!("Linux {release},")), "{note}");
        }
        for release in [
            "6.2.0",
            "6.2-rc1",
            "6.12.9+deb13-amd64",
            "7.0.1",
            "6.18.44-x",
            "unknown",
        ] {
            assert_eq!(note(release), None, "{release}");
        }
    }
}
