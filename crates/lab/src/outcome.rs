//! What an experiment gives, whole: the report, the CSV and the JSON are made of this and of nothing else.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The result of one experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its id: `cw-seq-write`.
    pub experiment: String,
    /// What it asks, in one line: the heading of its section.
    pub title: String,
    /// The paper's figure or table: `Fig. 11`.
    pub figure: String,
    /// What the paper did and found, in a few sentences.
    pub paper: String,
    /// What we settled where the paper leaves something open, and how ours differs and why (from the counters): paragraphs.
    pub notes: Vec<String>,
    /// 1 is the full size.
    pub scale: f64,
    /// What all choices were drawn from.
    pub seed: u64,
    /// Version of the program.
    pub version: String,
    /// Everything that was set, by name, with its unit in the value: `cache` = `160 MiB`.
    pub parameters: BTreeMap<String, String>,
    /// What was measured.
    pub rows: Vec<Row>,
    /// How to show it.
    pub charts: Vec<Chart>,
    /// Head positions over accesses.
    pub scatters: Vec<Scatter>,
    /// Layout of a volume, as pictures.
    pub maps: Vec<LayoutMap>,
}

/// One measured number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `ffs-paper`, `ffs`, `cowrite`, `ext4`…
    pub system: String,
    /// What else varies: `drive` = `mpg3307at`, `utilization` = `30`, `phase` = `create`.
    #[serde(flatten)]
    pub dimensions: BTreeMap<String, String>,
    /// What was measured: `bandwidth`, `elapsed`, `gain`.
    pub metric: String,
    /// The number. JSON has no NaN and no infinity: they are `null` there, and NaN again when read.
    #[serde(deserialize_with = "number_or_nan")]
    pub value: f64,
    /// Its unit: `MB/s`, `s`, `%`.
    pub unit: String,
    /// The paper's number for the same thing, where it gives one.
    pub paper: Option<f64>,
}

fn number_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// A picture made of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Its caption.
    pub title: String,
    /// How it is drawn.
    pub form: ChartForm,
    /// Rows with this metric.
    pub metric: String,
    /// And these dimensions.
    pub only: BTreeMap<String, String>,
    /// The dimension along the horizontal axis. Each system is a line, or a bar beside the others.
    pub along: String,
}

/// How a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChartForm {
    /// Grouped bars.
    Bars,
    /// Lines with points.
    Lines,
}

/// Points of several systems in one picture: where the head was at each access.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// Its caption.
    pub title: String,
    /// What the axes show: (`access`, `sector`).
    pub axes: (String, String),
    /// By system: the points.
    pub points: BTreeMap<String, Vec<(f64, f64)>>,
}

/// What lies where on a volume: rows of cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayoutMap {
    /// Its caption: `cowrite, 30 % full, after`.
    pub title: String,
    /// Cells in a row.
    pub columns: usize,
    /// What most blocks of each cell are.
    pub cells: Vec<Cell>,
}

/// What a cell of a layout map shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Nothing.
    Free,
    /// Tables, bitmaps, maps.
    Metadata,
    /// Directories.
    Directory,
    /// Files of at most twelve blocks.
    Small,
    /// Larger files.
    Large,
}
