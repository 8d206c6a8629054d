//! A generated data set: models and capacities in the proportions of the real fleet, drives of mixed age,
//! starting on 2017-01-01. At the default size the fleet has as many drives as the real one. Fewer rows mean
//! fewer drives rather than fewer days, so that January 2017 is always complete.

use std::{collections::HashSet, sync::Arc};

use engine::random::SplitMix64;

use super::{
    Date, Row, Schema,
    fleet::{Fleet, new_serial},
    models::{FLEET_DRIVES, MODELS, Model, Vendor},
    smart,
};

/// A data set smaller than the full fleet covers at least this many days.
const DAYS_MIN: u64 = 45;

/// Generates `rows` rows; the same `seed` gives the same rows.
pub(crate) fn rows(rows: u64, seed: u64) -> impl Iterator<Item = Row> {
    let schema = Schema::of_2013();
    let mut random = SplitMix64::new(seed);
    let date = Date::new(2017, 1, 1).expect("the calendar has this day");
    let drives = (rows / DAYS_MIN).clamp(1, FLEET_DRIVES);
    let first_day = first_day(&schema, drives, date, &mut random);
    Fleet::new(&schema, first_day, date, random).take(rows as usize)
}

fn first_day(schema: &Schema, drives: u64, date: Date, random: &mut SplitMix64) -> Vec<Row> {
    let mut serials = HashSet::new();
    let names: Vec<Arc<str>> = MODELS.iter().map(|model| model.name.into()).collect();
    let mut rows: Vec<Row> = (0..drives)
        .map(|drive| {
            // The drive's position in the real fleet determines its model, so that a full-size fleet has
            // exactly the real counts.
            let model = model_at(drive * FLEET_DRIVES / drives);
            let serial_number = new_serial(MODELS[model].serial_like, &mut serials, random);
            let smart = first_smart(schema, &MODELS[model], random);
            let capacity_bytes = MODELS[model].capacity_bytes;
            let model = names[model].clone();
            Row {
                date,
                serial_number,
                model,
                capacity_bytes,
                failure: false,
                smart,
            }
        })
        .collect();
    // Real files mix the models, because they list drives by rack position.
    for last in (1..rows.len()).rev() {
        rows.swap(last, random.below(last as u64 + 1) as usize);
    }
    rows
}

fn model_at(mut place: u64) -> usize {
    for (index, model) in MODELS.iter().enumerate() {
        if place < model.drives {
            return index;
        }
        place -= model.drives;
    }
    MODELS.len() - 1
}

fn first_smart(schema: &Schema, model: &Model, random: &mut SplitMix64) -> Vec<Option<i64>> {
    let vendor = Vendor::of(model.name);
    let reported = smart::reported_by(vendor);
    let hours = random.between(24, 36_000);
    // Both values of an attribute must come from one draw; their columns are adjacent.
    let mut drawn = (0, (0, 0));
    let value = |column: &super::SmartColumn| {
        if !reported.contains(&column.attribute) {
            return None;
        }
        if drawn.0 != column.attribute {
            drawn = (
                column.attribute,
                smart::initial(column.attribute, vendor, hours, random),
            );
        }
        Some(if column.raw { drawn.1.1 } else { drawn.1.0 })
    };
    schema.smart.iter().map(value).collect()
}
