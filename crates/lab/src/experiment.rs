//! Running an experiment.
//!
//! An experiment consists of *cases*: one system on one drive with one utilization, each on a
//! machine of its own. Cases run on all cores; their results are put together in the order of the
//! cases, so that the number of cores changes nothing.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use moafs_f2fs::place::DeviceCost;
use moafs_workload::Pattern;

use crate::age::{Aged, Aging, FragmentedVolume};
use crate::calibrate;
use crate::error::{LabError, Result};
use crate::log_volume::{self, LogAged, LogShape};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::volume::VolumeShape;

/// The smallest scale: some files in some directories.
pub const SCALE_MIN: f64 = 0.005;
/// The largest scale: a larger workload does not fit on its volume.
pub const SCALE_MAX: f64 = 4.0;

/// An experiment of a paper.
pub struct Experiment {
    /// Name of the experiment: `cw-seq-write`.
    pub id: &'static str,
    /// Its question, in one line.
    pub title: &'static str,
    /// The paper's figure or table.
    pub figure: &'static str,
    /// The paper's method and finding.
    pub paper: &'static str,
    /// Function that runs the experiment.
    pub(crate) run: fn(&Experiment, &Lab<'_>) -> Result<Outcome>,
}

/// The options of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Scale of the run; 1 is the full size. Counts of files and the size of the volume and of the
    /// cache go with it.
    pub scale: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of cases that run at the same time.
    pub jobs: usize,
    /// Parameters, with the values that were set.
    pub parameters: Parameters,
}

impl RunOptions {
    /// Checks the scale.
    ///
    /// # Errors
    /// [`LabError::Value`] if a value is out of its range.
    pub fn check(&self) -> Result<()> {
        if (SCALE_MIN..=SCALE_MAX).contains(&self.scale) {
            return Ok(());
        }
        Err(LabError::Value {
            name: "scale".to_owned(),
            value: self.scale.to_string(),
            rule: format!("{SCALE_MIN} to {SCALE_MAX}"),
        })
    }
}

/// An observer of a run's progress. It is called from many threads.
pub trait Progress: Sync {
    /// Reports that an experiment of `cases` cases begins.
    fn begins(&self, experiment: &str, cases: usize);
    /// Reports that a case has ended.
    fn case_done(&self, case: &str);
}

/// An observer that reports nothing.
pub struct Silent;

impl Progress for Silent {
    fn begins(&self, _experiment: &str, _cases: usize) {}
    fn case_done(&self, _case: &str) {}
}

/// A run of some experiments: options, aged volumes they share, progress.
pub struct Lab<'a> {
    /// Options of the run.
    pub options: RunOptions,
    progress: &'a dyn Progress,
    /// Churned volumes, by wanted score in millionths.
    worn: Mutex<BTreeMap<u64, Slot<FragmentedVolume>>>,
    /// Aged volumes, by score in millionths and utilization in percent.
    aged: Mutex<BTreeMap<(u64, u8), Slot<Aged>>>,
    /// F2FS volumes, by utilization in percent and the pattern of overwriting.
    log_aged: Mutex<BTreeMap<(u8, Pattern), Slot<LogAged>>>,
    /// Costs of the drives' requests, by drive.
    costs: Mutex<BTreeMap<String, Slot<DeviceCost>>>,
    /// Results of cases that several experiments share: for each type of case and result a map of slots.
    shared: Mutex<BTreeMap<TypeId, Box<dyn Any + Send>>>,
}

/// A value made once, by the first case that needs it; other cases wait for it.
type Slot<T> = Arc<OnceLock<Result<Arc<T>>>>;

impl<'a> Lab<'a> {
    /// Prepares a run.
    ///
    /// # Errors
    /// Fails if the options make no sense, or name a drive that does not exist.
    pub fn new(options: RunOptions, progress: &'a dyn Progress) -> Result<Lab<'a>> {
        options.check()?;
        options.parameters.drives.iter().try_for_each(|name| crate::machine::drive(name).map(drop))?;
        Ok(Lab {
            options,
            progress,
            worn: Mutex::default(),
            aged: Mutex::default(),
            log_aged: Mutex::default(),
            costs: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// Runs one experiment.
    ///
    /// # Errors
    /// Fails if a case fails otherwise than by a full volume.
    pub fn run(&self, experiment: &Experiment) -> Result<Outcome> {
        (experiment.run)(experiment, self)
    }

    /// Makes an outcome with the fields that do not depend on the measurement.
    pub(crate) fn outcome_of(&self, experiment: &Experiment) -> Outcome {
        let shape = self.shape();
        let mut parameters = self.options.parameters.show();
        parameters.insert(
            "volume".to_owned(),
            format!(
                "{:.2} GiB, {} groups of {} blocks of {} KiB",
                shape.bytes() as f64 / f64::from(1 << 30),
                shape.groups,
                shape.blocks_per_group,
                shape.block_bytes / 1024
            ),
        );
        Outcome {
            experiment: experiment.id.to_owned(),
            title: experiment.title.to_owned(),
            figure: experiment.figure.to_owned(),
            paper: experiment.paper.to_owned(),
            scale: self.options.scale,
            seed: self.options.seed,
            seeds: 1,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            parameters,
            ..Outcome::default()
        }
    }

    /// Returns the shape of the volumes.
    pub fn shape(&self) -> VolumeShape {
        VolumeShape::paper(self.options.scale)
    }

    /// Returns the count `full` at this scale, at least `min`.
    pub fn scaled(&self, full: u64, min: u64) -> u64 {
        ((full as f64 * self.options.scale).round() as u64).max(min)
    }

    /// Returns the aged volume with this utilization. It is made once in a run.
    ///
    /// # Errors
    /// Fails if aging fails.
    pub fn aged(&self, utilization: u8) -> Result<Arc<Aged>> {
        let score = self.options.parameters.score;
        let aging = Aging { shape: self.shape(), utilization, score, seed: self.options.seed };
        aging.check()?;
        let key = (score * 1e6).round() as u64;
        let slot = Arc::clone(self.aged.lock().entry((key, utilization)).or_default());
        slot.get_or_init(|| {
            let worn = Arc::clone(self.worn.lock().entry(key).or_default());
            let worn = worn.get_or_init(|| aging.worn().map(Arc::new)).clone()?;
            worn.cut(&aging).map(Arc::new)
        })
        .clone()
    }

    /// Returns the F2FS volume with this utilization, overwritten by this pattern. It is made once
    /// in a run.
    ///
    /// # Errors
    /// Fails if the volume cannot reach the utilization.
    pub(crate) fn log_aged(&self, utilization: u8, pattern: Pattern) -> Result<Arc<LogAged>> {
        let slot = Arc::clone(self.log_aged.lock().entry((utilization, pattern)).or_default());
        let shape = LogShape::paper(self.options.scale);
        let aged = || log_volume::aged(&shape, utilization, pattern, self.options.seed).map(Arc::new);
        slot.get_or_init(aged).clone()
    }

    /// Returns the costs of a drive's requests on a volume of the F2FS experiments. They are
    /// measured once in a run.
    ///
    /// # Errors
    /// Fails if the drive cannot be made.
    pub(crate) fn device_cost(&self, drive: &str) -> Result<DeviceCost> {
        let slot = Arc::clone(self.costs.lock().entry(drive.to_owned()).or_default());
        let bytes = LogShape::paper(self.options.scale).bytes;
        let cost = || calibrate::device_cost(&crate::machine::drive(drive)?, bytes).map(Arc::new);
        slot.get_or_init(cost).clone().map(|cost| *cost)
    }

    /// Returns the result of a case that several experiments share. It is run once, however many of them ask.
    ///
    /// # Errors
    /// Fails as `run` does.
    pub(crate) fn once<C, T>(&self, case: &C, run: impl FnOnce() -> Result<T>) -> Result<Arc<T>>
    where
        C: Clone + Ord + Send + 'static,
        T: Send + Sync + 'static,
    {
        let slot = {
            let mut shared = self.shared.lock();
            let slots = shared.entry(TypeId::of::<(C, T)>()).or_insert_with(|| Box::new(BTreeMap::<C, Slot<T>>::new()));
            let slots = slots.downcast_mut::<BTreeMap<C, Slot<T>>>().expect("the key names these types");
            Arc::clone(slots.entry(case.clone()).or_default())
        };
        slot.get_or_init(|| run().map(Arc::new)).clone()
    }

    /// Runs all cases, `jobs` at a time, and returns their results in the order of the cases.
    ///
    /// # Errors
    /// Fails with the error of the first case in order that failed; cases that had not begun by then are left out.
    pub(crate) fn run_cases<C: Sync + ToString, T: Send>(
        &self,
        experiment: &str,
        cases: &[C],
        run: impl Fn(&C) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        self.progress.begins(experiment, cases.len());
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let results: Vec<Mutex<Option<Result<T>>>> = cases.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while let Some((at, case)) = cases.iter().enumerate().nth(next.fetch_add(1, Ordering::SeqCst)) {
                if failed.load(Ordering::SeqCst) {
                    return;
                }
                let result = run(case);
                failed.fetch_or(result.is_err(), Ordering::SeqCst);
                *results[at].lock() = Some(result);
                self.progress.case_done(&case.to_string());
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.options.jobs.clamp(1, cases.len().max(1)) {
                scope.spawn(work);
            }
        });
        results.into_iter().filter_map(Mutex::into_inner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> RunOptions {
        RunOptions { scale: 0.02, seed: 1, jobs: 2, parameters: Parameters::default() }
    }

    #[test]
    fn scales_and_drives_are_checked_first() {
        for scale in [0.0, -1.0, f64::NAN, 100.0] {
            assert!(Lab::new(RunOptions { scale, ..options() }, &Silent).is_err());
        }
        let parameters = Parameters { drives: vec!["st9".to_owned()], ..Parameters::default() };
        let error = Lab::new(RunOptions { parameters, ..options() }, &Silent).err().unwrap().to_string();
        assert!(error.contains("mpg3307at"), "{error}");
    }

    #[test]
    fn results_come_in_the_order_of_the_cases() {
        let lab = Lab::new(options(), &Silent).unwrap();
        let cases: Vec<u64> = (0..50).collect();
        let results = lab.run_cases("none", &cases, |case| Ok(case * 2)).unwrap();
        assert_eq!(results, cases.iter().map(|case| case * 2).collect::<Vec<_>>());
        let failing = lab.run_cases("none", &cases, |case| match case {
            7 => Err(LabError::Aging("seven".to_owned())),
            _ => Ok(()),
        });
        assert!(failing.unwrap_err().to_string().contains("seven"));
    }
}
