//! The complete outcome of an experiment: the report, the CSV and the JSON are made of this and of
//! nothing else.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The result of one experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Id of the experiment: `cw-seq-write`.
    pub experiment: String,
    /// Question of the experiment in one line: the heading of its section.
    #[serde(default)]
    pub title: String,
    /// The paper's figure or table: `Fig. 11`.
    #[serde(default)]
    pub figure: String,
    /// The paper's method and finding, in a few sentences.
    #[serde(default)]
    pub paper: String,
    /// Notes, as paragraphs: choices of ours for details that the paper leaves open; differences to
    /// the paper and their reasons (from the counters).
    #[serde(default)]
    pub notes: Vec<String>,
    /// Scale of the run; 1 is the full size.
    pub scale: f64,
    /// Seed of all random choices; of several, the first.
    pub seed: u64,
    /// Number of seeds, from that one on, that the rows are means of.
    #[serde(default = "one")]
    pub seeds: u32,
    /// Version of the program.
    pub version: String,
    /// Commit of the program's source; empty if it is not known.
    #[serde(default)]
    pub commit: String,
    /// The command that measures the same again.
    #[serde(default)]
    pub command: String,
    /// Everything that was set, by name, with its unit in the value: `cache` = `160 MiB`.
    pub parameters: BTreeMap<String, String>,
    /// Measured numbers of all systems under all conditions.
    pub rows: Vec<Row>,
    /// Charts of the rows.
    #[serde(default)]
    pub charts: Vec<Chart>,
    /// Head positions over accesses.
    #[serde(default)]
    pub scatters: Vec<Scatter>,
    /// Layout of a volume, as pictures.
    #[serde(default)]
    pub maps: Vec<LayoutMap>,
}

fn one() -> u32 {
    1
}

impl Outcome {
    /// Returns the sentence that a report needs if the numbers were not measured at the paper's size.
    pub fn caution(&self) -> Option<String> {
        let has_paper = self.rows.iter().any(|row| row.paper.is_some());
        (self.scale != 1.0 && has_paper).then(|| {
            format!(
                "Not comparable with the paper: its numbers are of the full size, these are of scale {}, with so much \
                 smaller a volume, workload and memory.",
                self.scale
            )
        })
    }
}

/// A measured number, with the paper's number beside it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the system: `ffs-paper`, `ffs`, `cowrite`, `ext4`…
    pub system: String,
    /// Conditions besides the system: `drive` = `mpg3307at`, `utilization` = `30`, `phase` =
    /// `create`.
    #[serde(flatten)]
    pub dimensions: BTreeMap<String, String>,
    /// Name of the metric: `bandwidth`, `elapsed`, `gain`.
    pub metric: String,
    /// The measured number. JSON has no NaN and no infinity: they are `null` there, and NaN again
    /// when read.
    #[serde(deserialize_with = "number_or_nan")]
    pub value: f64,
    /// Unit of the number: `MB/s`, `s`, `%`.
    pub unit: String,
    /// The paper's number for the same thing, where it gives one.
    pub paper: Option<f64>,
    /// Half of the 95 % confidence interval, if the value is a mean over several seeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<f64>,
}

fn number_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// A picture made of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Caption of the chart.
    pub title: String,
    /// Form of the chart.
    pub form: ChartForm,
    /// Metric of the rows that are shown.
    pub metric: String,
    /// Dimensions that the rows must have to be shown.
    pub only: BTreeMap<String, String>,
    /// The dimension along the horizontal axis. Each system is a line, or a bar beside the others.
    pub along: String,
}

/// The form of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChartForm {
    /// Bars, grouped by the values of the dimension `along`.
    Bars,
    /// Lines with points, one per series.
    Lines,
}

/// Points of several systems in one picture: the position of the head at each access.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// Caption of the picture.
    pub title: String,
    /// Titles of the axes: (`access`, `sector`).
    pub axes: (String, String),
    /// Points (x, y) of each system, by its name.
    pub points: BTreeMap<String, Vec<(f64, f64)>>,
}

/// The layout of a volume as a picture: rows of cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayoutMap {
    /// Caption of the map: `cowrite, 30 % full, after`.
    pub title: String,
    /// Cells in a row.
    pub columns: usize,
    /// Kind of most blocks in each cell.
    pub cells: Vec<Cell>,
}

/// The kind of a layout map's cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Blocks that are free.
    Free,
    /// Metadata: tables, bitmaps, maps.
    Metadata,
    /// Blocks of directories' entries.
    Directory,
    /// Files of at most twelve blocks.
    Small,
    /// Files of more than twelve blocks.
    Large,
}
