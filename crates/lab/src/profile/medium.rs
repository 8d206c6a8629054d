//! Advice about a medium that takes most of the time, by the kinds of requests that take it: a faster flush helps only
//! those who wait for flushes.

/// A kind with less than this part of the medium's time is left out of the advice.
const COMMON: f64 = 0.25;

/// The kinds of requests to a medium, such as "flush", each with its part of the medium's time: the largest first.
pub(super) struct Kinds<'a>(Vec<(&'a str, f64)>);

impl<'a> Kinds<'a> {
    /// From the time of each kind, in any unit.
    pub(super) fn of(times: impl Iterator<Item = (&'a str, f64)>) -> Kinds<'a> {
        let mut all: Vec<(&str, f64)> = times.filter(|(_, time)| *time > 0.0).collect();
        let whole: f64 = all.iter().map(|(_, time)| time).sum();
        for (_, time) in &mut all {
            *time /= whole;
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        Kinds(all)
    }

    /// The figure: " (write 45 %, flush 44 %, read 11 % of that)". Empty if the kinds are not known.
    pub(super) fn told(&self) -> String {
        let told = |(kind, part): &(&str, f64)| format!("{kind} {:.0} %", 100.0 * part);
        match self.0.is_empty() {
            true => String::new(),
            false => {
                let all: Vec<String> = self.0.iter().map(told).collect();
                format!(" ({} of that)", all.join(", "))
            }
        }
    }

    /// The disk to look for: "a disk with faster writes and a faster flush, such as one with power-loss protection".
    pub(super) fn disk(&self) -> String {
        let common = || {
            let common = self.0.iter().filter(|(_, part)| *part >= COMMON);
            common.map(|(kind, _)| *kind)
        };
        let has = |wanted: &str| common().any(|kind| kind == wanted);
        let wished: Vec<String> = common()
            .map(|kind| match kind {
                "flush" => "a faster flush".to_owned(),
                kind => format!("faster {kind}s"),
            })
            .collect();
        let mut disk = match wished.is_empty() {
            true => "a faster disk".to_owned(),
            false => format!("a disk with {}", wished.join(" and ")),
        };
        if has("flush") {
            disk += ", such as one with power-loss protection";
        }
        if has("read") {
            disk += "; or give the database more memory for its pages (innodb_buffer_pool_size, shared_buffers), which \
                     saves reads";
        }
        disk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_that_for_the_kinds_that_take_the_time() {
        let of = |times: &[(&'static str, f64)]| {
            let kinds = Kinds::of(times.iter().copied());
            (kinds.told(), kinds.disk())
        };
        let told = |told: &str, disk: &str| (told.to_owned(), disk.to_owned());
        // As published (docs/results/2026-11-25, `commit-file`).
        assert_eq!(
            of(&[("flush", 227.3), ("read", 56.5), ("write", 230.5)]),
            told(
                " (write 45 %, flush 44 %, read 11 % of that)",
                "a disk with faster writes and a faster flush, such as one with power-loss protection"
            )
        );
        assert_eq!(
            of(&[("flush", 90.0), ("write", 10.0)]),
            told(
                " (flush 90 %, write 10 % of that)",
                "a disk with a faster flush, such as one with power-loss protection"
            )
        );
        let (_, reads) = of(&[("read", 90.0), ("write", 10.0)]);
        assert!(
            reads.starts_with("a disk with faster reads; or give the database"),
            "{reads}"
        );
        assert!(!reads.contains("flush"), "{reads}");
        assert_eq!(of(&[("write", 0.0)]), told("", "a faster disk"));
    }
}
