//! The drive models of one real day, 2013-04-10, with the number of each in service: the mix of a generated
//! fleet. Failure rates are per year, rounded from what Backblaze published for these models over their
//! lifetime; a model not listed fails at the rate of the whole fleet.

/// Drive makers, as far as their SMART values differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    /// Hitachi and HGST.
    Hitachi,
    /// Seagate, whose models begin with ST.
    Seagate,
    /// Western Digital.
    WesternDigital,
    /// Toshiba, Samsung and all others.
    Other,
}

impl Vendor {
    pub(crate) fn of(model: &str) -> Self {
        match model {
            m if m.starts_with("ST") => Self::Seagate,
            m if m.starts_with("WDC") => Self::WesternDigital,
            m if m.starts_with("Hitachi") || m.starts_with("HGST") => Self::Hitachi,
            _ => Self::Other,
        }
    }
}

/// One model of the table.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) capacity_bytes: i64,
    /// Drives of this model on 2013-04-10.
    pub(crate) drives: u64,
    /// Fraction of drives that fail in a year.
    pub(crate) annual_failure_rate: f64,
    /// What its serial numbers look like.
    pub(crate) serial_like: &'static str,
}

const TB1: i64 = 1_000_204_886_016;
const TB1_5: i64 = 1_500_301_910_016;
const TB2: i64 = 2_000_398_934_016;
const TB3: i64 = 3_000_592_982_016;
const TB4: i64 = 4_000_787_030_016;

const HITACHI: &str = "MJ0351YNG9Z0XA";
const SEAGATE: &str = "W1F0LRXG";
const WD: &str = "WD-WCAV5A957134";

const fn model(
    name: &'static str,
    capacity_bytes: i64,
    drives: u64,
    annual_failure_rate: f64,
    serial_like: &'static str,
) -> Model {
    Model {
        name,
        capacity_bytes,
        drives,
        annual_failure_rate,
        serial_like,
    }
}

/// Failure rate per year of a model that is not in [`MODELS`].
const FLEET_FAILURE_RATE: f64 = 0.03;

/// Number of drives on 2013-04-10.
pub(crate) const FLEET_DRIVES: u64 = 21_195;

/// The table; the counts add up to [`FLEET_DRIVES`].
pub(crate) static MODELS: [Model; 36] = [
    model("Hitachi HDS722020ALA330", TB2, 4718, 0.011, HITACHI),
    model("ST3000DM001", TB3, 4508, 0.098, SEAGATE),
    model("Hitachi HDS5C3030ALA630", TB3, 4504, 0.008, HITACHI),
    model("ST31500541AS", TB1_5, 2104, 0.099, SEAGATE),
    model("Hitachi HDS5C4040ALE630", TB4, 1306, 0.013, HITACHI),
    model("Hitachi HDS723030ALA640", TB3, 1031, 0.018, HITACHI),
    model("ST31500341AS", TB1_5, 748, 0.25, SEAGATE),
    model("WDC WD10EADS", TB1, 538, 0.036, WD),
    model("WDC WD30EZRX", TB3, 477, 0.046, WD),
    model("ST32000542AS", TB2, 363, 0.078, SEAGATE),
    model("ST33000651AS", TB3, 306, 0.055, SEAGATE),
    model("WDC WD30EFRX", TB3, 135, 0.032, WD),
    model("WDC WD10EACS", TB1, 109, 0.05, WD),
    model("ST1500DL003", TB1_5, 78, 0.12, SEAGATE),
    model("HGST HMS5C4040ALE640", TB4, 45, 0.01, HITACHI),
    model("ST4000DX000", TB4, 44, 0.011, SEAGATE),
    model("TOSHIBA DT01ACA300", TB3, 40, 0.04, "Z252E8NAS"),
    model("WDC WD10EADX", TB1, 19, 0.03, WD),
    model("WDC WD30EZRS", TB3, 18, 0.05, WD),
    model("ST320005XXXX", TB2, 17, 0.08, SEAGATE),
    model("Hitachi HDT721010SLA360", TB1, 15, 0.03, "STF605MH1MR9DW"),
    model("SAMSUNG HD103UJ", TB1, 14, 0.02, "S13PJDWS343397"),
    model("ST2000DL003", TB2, 10, 0.08, SEAGATE),
    model("ST2000DM001", TB2, 8, 0.08, SEAGATE),
    model("Hitachi HDS723020BLA642", TB2, 7, 0.01, HITACHI),
    model("ST2000DL001", TB2, 7, 0.08, SEAGATE),
    model("ST1500DM003", TB1_5, 5, 0.08, SEAGATE),
    model("Hitachi HDS723030BLE640", TB3, 5, 0.02, HITACHI),
    model("WDC WD10EARS", TB1, 4, 0.05, WD),
    model("WDC WD15EARS", TB1_5, 3, 0.05, WD),
    model("WDC WD10EARX", TB1, 3, 0.05, WD),
    model("ST1500DL001", TB1_5, 2, 0.08, SEAGATE),
    model("WDC WD10EALS", TB1, 1, 0.05, WD),
    model("Hitachi HDS5C3030BLE630", TB3, 1, 0.01, HITACHI),
    model("WDC WD1001FALS", TB1, 1, 0.05, WD),
    model("WDC WD15EADS", TB1_5, 1, 0.05, WD),
];

/// The annual failure rate of the model `name`, as a fraction.
pub(crate) fn annual_failure_rate(name: &str) -> f64 {
    let known = MODELS.iter().find(|model| model.name == name);
    known.map_or(FLEET_FAILURE_RATE, |model| model.annual_failure_rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_add_up_to_the_real_day() {
        assert_eq!(MODELS.iter().map(|m| m.drives).sum::<u64>(), FLEET_DRIVES);
    }
}
