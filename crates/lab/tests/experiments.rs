//! Every experiment at a small scale: its table as it was reviewed, whatever the number of cores.
//!
//! `UPDATE_SNAPSHOTS=1` writes the tables anew after a change that was meant.

use std::fmt::Write as _;
use std::path::PathBuf;

use moafs_lab::Outcome;
use moafs_lab::experiment::{Lab, RunOptions, Silent};
use moafs_lab::experiments::{all, select};
use moafs_lab::parameters::Parameters;

/// The co-writing paper's, on one of its drives.
const CO_WRITING: &[&str] = &["drives=mpg3307at", "utilization=0,30"];

fn ids(prefix: &str) -> Vec<String> {
    all().iter().map(|experiment| experiment.id.to_owned()).filter(|id| id.starts_with(prefix)).collect()
}

fn run(ids: &[String], scale: f64, jobs: usize, set: &[&str]) -> Vec<Outcome> {
    let mut parameters = Parameters::default();
    for assignment in set {
        parameters.set(assignment).unwrap();
    }
    let lab = Lab::new(RunOptions { scale, seed: 7, jobs, parameters }, &Silent).unwrap();
    select(ids).unwrap().into_iter().map(|experiment| lab.run(experiment).unwrap()).collect()
}

/// Writes the rows of an outcome as text.
fn table(outcome: &Outcome) -> String {
    let mut text = String::new();
    for row in &outcome.rows {
        let dimensions: Vec<String> = row.dimensions.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let _ = write!(text, "{} {} {} {} {}", row.system, dimensions.join(" "), row.metric, row.value, row.unit);
        text += &row.paper.map_or(String::new(), |paper| format!(" (paper: {paper})"));
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn snapshot(id: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(format!("{id}.txt"))
}

#[test]
fn tables_of_co_writing_are_as_reviewed_and_do_not_depend_on_cores() {
    let ids = ids("cw-");
    are_as_reviewed(&run(&ids, 0.02, 1, CO_WRITING), &run(&ids, 0.02, 2, CO_WRITING));
}

#[test]
fn tables_of_swap_areas_are_as_reviewed_and_do_not_depend_on_cores() {
    let ids = ids("saf-");
    are_as_reviewed(&run(&ids, 0.02, 1, &[]), &run(&ids, 0.02, 2, &[]));
}

/// Compares the outcomes of one core and of two cores with the reviewed tables.
fn are_as_reviewed(one: &[Outcome], two: &[Outcome]) {
    for (one, two) in one.iter().zip(two) {
        assert!(one == two, "{} differs between one core and two", one.experiment);
        let path = snapshot(&one.experiment);
        let text = table(one);
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = text.lines().zip(reviewed.lines()).find(|(now, then)| now != then);
        assert!(
            text == reviewed,
            "{}: now and as reviewed: {differs:?}; UPDATE_SNAPSHOTS=1 if it was meant",
            one.experiment
        );
    }
}

fn value(outcome: &Outcome, system: &str, metric: &str, dimensions: &[(&str, &str)]) -> f64 {
    let fits = |row: &&moafs_lab::outcome::Row| {
        let same = |(name, value): &(&str, &str)| row.dimensions.get(*name).is_some_and(|at| at == value);
        row.system == system && row.metric == metric && dimensions.iter().all(same)
    };
    outcome.rows.iter().find(fits).unwrap_or_else(|| panic!("no {metric} of {system}")).value
}

#[test]
fn recycling_copies_nothing_and_writes_less_than_cleaning_on_any_number_of_cores() {
    let set = ["utilization=70", "drives=hds721616pla380", "systems=wolf,recycling"];
    let of = |jobs| run(&["lfs-traffic".to_owned()], 0.1, jobs, &set).remove(0);
    let outcome = of(1);
    assert_eq!(outcome, of(2));
    for pattern in ["uniform", "hot-cold"] {
        let value = |system, metric| value(&outcome, system, metric, &[("pattern", pattern)]);
        assert!(value("recycling", "written") < value("wolf", "written"), "{pattern}");
        assert!(value("recycling", "recyclings") > 0.0 && value("wolf", "cleanings") > 0.0, "{pattern}");
    }
}

#[test]
fn the_drive_is_hardly_idle_while_writers_are_faster_than_it() {
    let set = ["utilization=70", "systems=cost-benefit,wolf,recycling"];
    for outcome in run(&["lfs-uniform-hdd".to_owned(), "lfs-hotcold-ssd".to_owned()], 0.1, 2, &set) {
        for system in ["cost-benefit", "wolf", "recycling"] {
            let [idle, elapsed] = ["time_idle", "elapsed"].map(|metric| value(&outcome, system, metric, &[]));
            assert!(idle < 0.05 * elapsed, "{} {system}: {idle} of {elapsed} s", outcome.experiment);
        }
    }
}

#[test]
fn every_system_is_held_against_the_bounds() {
    let set = ["utilization=70", "systems=wolf,sepbit,recycling,oracle,fk"];
    let outcome = run(&["lfs-hotcold-ssd".to_owned()], 0.1, 2, &set).remove(0);
    let share = |system, bound, of| value(&outcome, system, "share_of_bound", &[("bound", bound), ("of", of)]);
    for system in ["wolf", "sepbit", "recycling", "oracle"] {
        assert!(share(system, "floor", "elapsed") < 100.0, "{system} is faster than the drive");
        assert!(share(system, "fk", "elapsed") > 0.0 && share(system, "closed-form", "data_written") > 0.0, "{system}");
    }
    for system in ["wolf", "sepbit"] {
        assert!(share(system, "closed-form", "data_written") < 100.0, "{system} cleans better than it can");
    }
    let moved = |system| value(&outcome, system, "blocks_moved", &[]);
    assert!(moved("fk") < moved("oracle"), "placement by the future saves nothing");
}

#[test]
fn a_drive_that_queues_commands_is_a_condition_of_its_own() {
    let set = ["utilization=70", "systems=recycling", "queue_depth=1,32", "drives=hds721616pla380"];
    let outcome = run(&["lfs-uniform-hdd".to_owned()], 0.1, 2, &set).remove(0);
    let [one, many] = ["1", "32"].map(|depth| value(&outcome, "recycling", "elapsed", &[("queue_depth", depth)]));
    assert!(many < one, "the drive gains nothing by choosing: {many} and {one} s");
    let none = Parameters::default().queue_depths;
    assert_eq!(none, None, "one command is no condition, so that rows keep their form");
}

#[test]
fn swap_areas_take_the_long_strokes_away_and_cost_nothing_where_they_are_of_no_use() {
    let of = |id: &str| run(&[id.to_owned()], 0.04, 2, &[]).remove(0);
    let both = of("saf-postmark-sor");
    let [long, saf_long] = ["partition", "saf"].map(|system| value(&both, system, "long_strokes", &[]));
    assert!(saf_long * 20.0 < long, "{saf_long} of {long} are left");
    assert!(value(&both, "saf", "change", &[("against", "partition")]) < -20.0);
    for id in ["saf-only-files", "saf-only-memory"] {
        let change = value(&of(id), "saf", "change", &[("against", "partition")]);
        assert!(change.abs() <= 1.0, "{id}: {change} %");
    }
}

#[test]
fn swap_areas_beside_a_log_pay_where_a_head_moves_and_wear_a_card() {
    let of = |id: &str| run(&[id.to_owned()], 0.1, 2, &[]).remove(0);
    let [disk, card] = ["saf-log-hdd", "saf-log-sd"].map(of);
    for against in ["partition", "start"] {
        let [disk, card] = [&disk, &card].map(|outcome| value(outcome, "saf", "change", &[("against", against)]));
        assert!(disk < -20.0, "disk, against {against}: {disk} %");
        assert!(card > 0.0, "card, against {against}: {card} %");
    }
    let wear = |system| value(&card, system, "flash_write_amplification", &[]);
    assert!(wear("saf") > wear("partition"));
    assert_eq!(value(&card, "partition", "segments_taken", &[]), 0.0);
    assert!(value(&card, "saf", "segments_taken", &[]) > 0.0);
}

#[test]
fn the_heads_way_is_shown_for_both_systems() {
    let outcome = run(&["saf-head".to_owned()], 0.02, 2, &[]).remove(0);
    assert_eq!(outcome.scatters.len(), 2);
    for scatter in &outcome.scatters {
        assert_eq!(scatter.points.keys().collect::<Vec<_>>(), ["partition", "saf"]);
        assert!(scatter.points.values().all(|points| points.len() >= 1000), "{}", scatter.title);
    }
}

#[test]
fn cleaning_by_file_joins_what_writers_scattered_and_writes_no_more_on_any_number_of_cores() {
    let ids = ids("fac-");
    let (one, two) = (run(&ids, 0.02, 1, &[]), run(&ids, 0.02, 2, &[]));
    assert_eq!(one, two);
    let of = |id: &str| one.iter().find(|outcome| outcome.experiment == id).unwrap();
    let groups = |system| value(of("fac-dbg"), system, "groups", &[("when", "after cleaning")]);
    assert!(groups("file") < 0.4 * groups("found") && groups("file-gather-16") < 0.1 * groups("found"));
    let written = |system| value(of("fac-overhead"), system, "data_written", &[]);
    assert!(written("file") <= written("found"));
}

#[test]
fn every_experiment_names_all_systems_and_both_baselines() {
    for outcome in run(&["cw-random-write".to_owned(), "cw-postmark".to_owned()], 0.02, 2, CO_WRITING) {
        for system in ["ffs-paper", "ffs", "cowrite-paper", "cowrite"] {
            assert!(outcome.rows.iter().any(|row| row.system == system), "{} lacks {system}", outcome.experiment);
        }
        for against in ["ffs-paper", "ffs"] {
            let compared = |row: &&moafs_lab::outcome::Row| {
                ["gain", "change"].contains(&&*row.metric)
                    && row.dimensions.get("against").is_some_and(|at| at == against)
            };
            let count = outcome.rows.iter().filter(compared).count();
            // The published and ours, and the two between them that the ablation adds, at two utilizations.
            assert_eq!(count, 2 * 4, "{} against {against}", outcome.experiment);
        }
        let is_step = |row: &&moafs_lab::outcome::Row| row.dimensions.contains_key("step");
        assert_eq!(outcome.rows.iter().filter(is_step).count(), 2 * 5, "{}", outcome.experiment);
        assert!(!outcome.notes.is_empty() && !outcome.charts.is_empty() && !outcome.parameters.is_empty());
    }
}

#[test]
fn one_case_is_shown_in_pictures() {
    let outcome = run(&["cw-random-write".to_owned()], 0.02, 2, CO_WRITING).remove(0);
    assert_eq!(outcome.maps.len(), 5, "before, and after for each system");
    assert_eq!(outcome.scatters[0].points.len(), 4);
}

#[test]
fn a_full_volume_stops_the_workload_and_says_so() {
    // 0.02 of 25,000 files and their appends do not fit into the tenth of a volume of two groups that is left.
    let outcome = run(&["cw-postmark".to_owned()], 0.02, 2, &["drives=mpg3307at", "utilization=90"]).remove(0);
    let told = outcome.notes.iter().any(|note| note.contains("postmark stops: the volume is full after"));
    let measured = outcome.rows.iter().any(|row| row.metric == "elapsed");
    assert!(told != measured, "either it fits, or it says that it does not: {:?}", outcome.notes);
}

#[test]
fn every_experiment_has_an_id_of_its_own() {
    let mut ids: Vec<&str> = all().iter().map(|experiment| experiment.id).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}
