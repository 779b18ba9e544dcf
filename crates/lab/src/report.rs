//! The report: outcomes as one HTML file, CSV, JSON, and pictures as SVG and PNG.
//!
//! The one idea: [`files`] turns outcomes into the bytes of every file, from nothing but the outcomes (no clock, no
//! fonts or locale of the machine), so the same outcomes give the same report anywhere, at any time; [`write_dir`] then
//! puts the files in place, each whole. Invariants:
//! * A file is written beside its place, synced, and renamed; `report.html` last. An interruption leaves every file old
//!   or new, none half-written.
//! * Kept results (`ID.json`) are guests: [`read`] checks them, and no number or text in them can break a page, a
//!   picture, or a path.
//!
//! | module | what it holds |
//! |---|---|
//! | `html`, `compare` | the page, and its tables of ours beside the paper's |
//! | `pictures`, `chart`, `scatter`, `layout` | bars and lines, head positions, layout maps |
//! | `axis`, `number`, `style`, `font`, `svg`, `png` | what they are drawn with |
//! | `csv`, `json` | rows and outcomes as data |
//! | `files` | the bytes of every file |
//! | `write` | putting the files in place |
//!
//! Pictures are lettered in Inter (SIL Open Font License 1.1, `fonts/OFL.txt`), which is part of the program; PNGs are
//! rendered by resvg (MIT or Apache-2.0).

mod axis;
mod chart;
mod compare;
mod csv;
mod error;
mod files;
mod font;
mod html;
mod json;
mod layout;
mod number;
mod pictures;
mod png;
mod scatter;
mod style;
mod svg;
mod write;

pub use csv::csv;
pub use error::ReportError;
pub use files::files;
pub use json::{Brief, json, read, read_dir};
pub use write::write_dir;
