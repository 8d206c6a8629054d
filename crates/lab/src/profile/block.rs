//! `block = "8KiB"`, or a mix of lengths with their shares: `block = { "4KiB" = 3, "64KiB" = 1 }`.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use volume::config::Size;

/// Lengths and shares that a user may give.
const SIZES_MAX: usize = 64;
/// Larger shares must be a typing error.
const SHARE_MAX: u64 = 1_000_000;
const EXAMPLES: &str = "\"8KiB\", or sizes with their shares, { \"4KiB\" = 3, \"64KiB\" = 1 }";

/// The lengths of I/Os, each with its share of them; at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Block(Vec<(Size, u64)>);

impl Block {
    /// For the load generator: lengths in bytes, each with its share.
    pub(super) fn sizes(&self) -> Vec<(usize, u64)> {
        let bytes = |size: Size| usize::try_from(size.bytes()).unwrap_or(usize::MAX);
        let sizes = self.0.iter();
        sizes.map(|(size, share)| (bytes(*size), *share)).collect()
    }

    /// The longest, in bytes.
    pub(super) fn bytes_max(&self) -> u64 {
        let bytes = self.0.iter().map(|(size, _)| size.bytes());
        bytes.max().unwrap_or(0)
    }

    /// The mean of something over all I/Os; `of` takes a length in bytes.
    pub(super) fn mean(&self, of: impl Fn(u64) -> f64) -> f64 {
        let all: u64 = self.0.iter().map(|(_, share)| share).sum();
        let parts = self.0.iter();
        let sum: f64 = parts
            .map(|(size, share)| of(size.bytes()) * *share as f64)
            .sum();
        sum / all as f64
    }

    /// Refuses what no disk of `span` has a place for.
    pub(super) fn check(&self, span: Size) -> Result<(), String> {
        for (size, _) in &self.0 {
            let bytes = size.bytes();
            if bytes == 0 || bytes % 512 != 0 {
                return Err(format!(
                    "block: {size} is no whole number of blocks of 512 bytes; write {EXAMPLES}"
                ));
            }
            if bytes > span.bytes() {
                return Err(format!(
                    "block: {size} is longer than size = \"{span}\"; write a shorter block, or a \
                     larger size"
                ));
            }
        }
        Ok(())
    }
}

impl From<Size> for Block {
    fn from(size: Size) -> Block {
        Block(vec![(size, 1)])
    }
}

impl fmt::Display for Block {
    /// `8KiB`, or `4KiB and 64KiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (size, _)) in self.0.iter().enumerate() {
            let between = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{between}{size}")?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Block, D::Error> {
        struct Mix;
        impl<'de> Visitor<'de> for Mix {
            type Value = Block;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a size, {EXAMPLES}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Block, E> {
                text.parse()
                    .map(|size: Size| size.into())
                    .map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Block, A::Error> {
                let mut all: Vec<(Size, u64)> = Vec::new();
                while let Some(text) = map.next_key::<String>()? {
                    let size: Size = text.parse().map_err(A::Error::custom)?;
                    let share: i64 = map.next_value()?;
                    let in_range = u64::try_from(share).ok();
                    let Some(share) = in_range.filter(|it| (1..=SHARE_MAX).contains(it)) else {
                        return Err(A::Error::custom(format!(
                            "\"{text}\" = {share}: a share is a whole number from 1 to {SHARE_MAX}, \
                             and a size without I/Os is left out"
                        )));
                    };
                    if let Some((twice, _)) = all.iter().find(|(known, _)| *known == size) {
                        return Err(A::Error::custom(format!(
                            "\"{text}\" is {twice}, which is there already: give each size once, \
                             with one share"
                        )));
                    }
                    all.push((size, share));
                }
                match all.len() {
                    1..=SIZES_MAX => Ok(Block(all)),
                    0 => Err(A::Error::custom(format!(
                        "no size is given; write {EXAMPLES}"
                    ))),
                    many => Err(A::Error::custom(format!(
                        "{many} sizes are too many: write at most {SIZES_MAX}"
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Settings {
        block: Block,
    }

    fn block(value: &str) -> Result<Block, String> {
        let settings = toml::from_str(&format!("block = {value}"));
        let block = settings.map(|settings: Settings| settings.block);
        block.map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn one_length_or_a_mix_of_them() {
        let one = block("\"8KiB\"").expect("a size");
        assert_eq!(one.sizes(), [(8192, 1)]);
        assert_eq!(one.to_string(), "8KiB");
        let mix = block("{ \"4KiB\" = 3, \"64KiB\" = 1 }").expect("a mix");
        let mut sizes = mix.sizes();
        sizes.sort_unstable();
        assert_eq!(sizes, [(4096, 3), (65_536, 1)]);
        assert_eq!(mix.bytes_max(), 65_536);
        assert!((mix.mean(|bytes| bytes as f64) - 19_456.0).abs() < 1e-9);
        let named = mix.to_string();
        assert!(
            named == "4KiB and 64KiB" || named == "64KiB and 4KiB",
            "{named}"
        );
    }

    #[test]
    fn what_is_no_mix_is_named_with_the_mend() {
        for (value, parts) in [
            ("8", &["8", "\"8KiB\", or sizes with their shares"][..]),
            ("{}", &["no size is given; write \"8KiB\""]),
            ("{ \"4KiB\" = 0 }", &["\"4KiB\" = 0", "1 to 1000000"]),
            ("{ \"4KiB\" = -3 }", &["\"4KiB\" = -3", "1 to 1000000"]),
            ("{ \"4KiB\" = 0.5 }", &["0.5"]),
            ("{ \"4\" = 1 }", &["\"4\"", "64KiB"]),
            ("{ \"1KiB\" = 1, \"1024B\" = 2 }", &["give each size once"]),
        ] {
            let error = block(value).expect_err(value);
            for part in parts {
                assert!(error.contains(part), "{value}: {error}");
            }
        }
        let size = |text: &str| text.parse::<Size>().expect("a size");
        let check = |text: &str| Block::from(size(text)).check(size("1MiB"));
        assert_eq!(check("1MiB"), Ok(()));
        let error = check("1000B").expect_err("no blocks");
        assert!(
            error.contains("block: 1KB") && error.contains("write \"8KiB\""),
            "{error}"
        );
        let error = check("2MiB").expect_err("too long");
        assert!(
            error.contains("block: 2MiB") && error.contains("1MiB"),
            "{error}"
        );
    }
}
