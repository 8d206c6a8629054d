//! Measurements with all samples, what follows from them, and three output forms: text for the terminal, JSON
//! for programs, and one HTML page for people. [`Findings`] is what every page shows; the
//! demo's [`Report`](crate::statements::Report) becomes findings here.

mod axes;
mod bars;
mod date;
mod experiment;
mod findings;
mod html;
mod json;
mod number;
mod page;
mod plot;
mod table;
#[cfg(test)]
mod tests;
mod timeline;

pub use findings::Findings;
pub(crate) use findings::{
    Axis, Bar, BarRow, FindingsTable, LayerShare, Layers, Marks, OperationTimes, Plot, PlotLine,
    Score, Span,
};
pub use json::json;
pub use number::grouped;
pub(crate) use number::{link_text, short, time_us};
pub use page::page;
pub(crate) use table::speed;
pub use table::table;
