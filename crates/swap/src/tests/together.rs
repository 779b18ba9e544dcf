use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use moafs_runtime::{Rt, Virtual};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::fake::{Bench, Shape, contents, generation_of, leaving};
use crate::{PAGE_BYTES, PageNo};

/// The history of a page, which has one writer. Its operations are numbered: some are page-outs of that generation,
/// some free the page.
struct Page {
    begun: AtomicU32,
    ended: AtomicU32,
}

fn is_free(page: u32, number: u32) -> bool {
    number == 0 || (page.wrapping_mul(31) ^ number.wrapping_mul(0x9e37_79b9)).is_multiple_of(6)
}

struct Shared {
    bench: Bench,
    pages: Vec<Page>,
    writers: u32,
}

impl Shared {
    fn new(shape: &Shape, rt: Rt, writers: u32) -> Arc<Shared> {
        let page = |_| Page { begun: AtomicU32::new(0), ended: AtomicU32::new(0) };
        Arc::new(Shared { bench: shape.bench_in(rt), pages: (0..shape.pages).map(page).collect(), writers })
    }

    /// Checks that a read returned a generation that the page had at some time between the two
    /// looks.
    fn check(&self, page: u32, ended_before: u32, generation: Option<u32>) {
        let begun_after = self.pages[page as usize].begun.load(Ordering::SeqCst);
        let mut possible = ended_before..=begun_after;
        match generation {
            Some(generation) => assert!(possible.contains(&generation), "page {page}: {generation} of {possible:?}"),
            None => assert!(possible.any(|number| is_free(page, number)), "page {page}: zeros, though {possible:?}"),
        }
    }

    fn ended(&self) -> Vec<u32> {
        self.pages.iter().map(|page| page.ended.load(Ordering::SeqCst)).collect()
    }

    fn work(&self, me: u32, seed: u64, steps: u32) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ u64::from(me) << 32);
        for _ in 0..steps {
            match rng.random_range(0..20) {
                0..8 => self.write(me, &mut rng),
                8..11 => self.read(rng.random_range(0..self.pages.len() as u32)),
                11..14 => self.read_with(rng.random_range(0..self.pages.len() as u32)),
                14..17 => self.bench.access(rng.random_range(0..8), rng.random_range(3..60)),
                17 => drop(self.bench.swap.run_background_step().expect("the disk is well")),
                18 => drop(self.bench.room.write_files(rng.random_range(0..8), rng.random_range(0..40))),
                _ => self.bench.room.delete_files(rng.random_range(0..8)),
            }
        }
    }

    fn write(&self, me: u32, rng: &mut Pcg64Mcg) {
        let own = self.pages.len() as u32 / self.writers;
        let first = rng.random_range(0..own);
        let mut leaves = Vec::new();
        for page in (first..own.min(first + rng.random_range(1..12))).map(|index| index * self.writers + me) {
            let number = self.pages[page as usize].begun.fetch_add(1, Ordering::SeqCst) + 1;
            if is_free(page, number) {
                self.bench.swap.free(PageNo(page), 1);
                self.pages[page as usize].ended.store(number, Ordering::SeqCst);
            } else {
                leaves.push((PageNo(page), contents(page, number)));
            }
        }
        self.bench.swap.page_out(&leaves).expect("there is always room");
        for (page, _) in leaves {
            let page = &self.pages[page.index()];
            page.ended.store(page.begun.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    fn read(&self, page: u32) {
        let before = self.pages[page as usize].ended.load(Ordering::SeqCst);
        let generation = self.bench.generation(page);
        self.check(page, before, generation);
    }

    fn read_with(&self, page: u32) {
        let before = self.ended();
        let mut each = |page: PageNo, bytes: &[u8]| {
            self.check(page.0, before[page.index()], generation_of(page.0, bytes));
        };
        self.bench.swap.page_in_with(PageNo(page), 7, &mut each).expect("the disk is well");
    }

    /// Checks, when no request is under way, that each page is what its writer made of it.
    fn end(&self) {
        self.bench.audit();
        for (page, number) in (0..).zip(self.ended()) {
            let expected = Some(number).filter(|number| !is_free(page, *number));
            assert_eq!(self.bench.generation(page), expected, "page {page}");
        }
    }
}

/// The name of a case, printed if a test fails.
struct Case(String);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("case: {}", self.0);
        }
    }
}

/// Returns swaps with spare slots, and swaps in which every reserved block is needed.
fn shapes() -> [Shape; 5] {
    let roomy = Shape { pages: 120, area_pages: 6, ..Shape::default() };
    [
        Shape { groups: 8, ..roomy.clone() },
        Shape { pages: 24, area_pages: 3, ..roomy.clone() },
        Shape { pages: 24, area_pages: 3, partition: true, ..roomy.clone() },
        Shape { block_bytes: 2048, group_blocks: 128, ..roomy.clone() },
        Shape { pages: 8, area_pages: 1, ..roomy },
    ]
}

#[test]
fn threads_do_not_get_each_others_bytes() {
    for (case, shape) in shapes().iter().enumerate() {
        let shared = Shared::new(shape, moafs_runtime::Live::new(), 2);
        std::thread::scope(|scope| {
            for me in 0..2 {
                let shared = &shared;
                scope.spawn(move || shared.work(me, case as u64, 4000));
            }
            scope.spawn(|| (0..4000).all(|_| shared.bench.swap.run_background_step().is_ok()));
        });
        shared.end();
    }
}

#[test]
fn tasks_in_virtual_time_do_not_get_each_others_bytes() {
    let mut waits = 0;
    for seed in 0..60 {
        for shape in shapes() {
            let _case = Case(format!("seed {seed}, {shape:?}"));
            let rt = Virtual::new(Some(seed));
            let shared = Shared::new(&shape, rt.rt(), 4);
            rt.run(|| {
                let task = |me: u32| {
                    let shared = shared.clone();
                    rt.rt().spawn("worker", Box::new(move || shared.work(me, seed, 60)))
                };
                let tasks: Vec<_> = (0..4).map(task).collect();
                tasks.iter().for_each(|task| task.join(&*rt.rt()));
                shared.end();
            });
            waits += shared.bench.swap.status().counters.waits;
        }
    }
    assert!(waits > 100, "the tight cases are there: {waits} waits");
}

#[test]
fn page_outs_of_several_tasks_are_at_the_device_together() {
    let rt = Virtual::new(None);
    let bench = Arc::new(Shape { pages: 200, ..Shape::default() }.bench_in(rt.rt()));
    rt.run(|| {
        bench.access(2, 3);
        let before = rt.rt().now();
        let task = |me: u32| {
            let bench = bench.clone();
            rt.rt().spawn("writer", Box::new(move || bench.out(me * 4..me * 4 + 4, 1)))
        };
        let tasks: Vec<_> = (0..8).map(task).collect();
        tasks.iter().for_each(|task| task.join(&*rt.rt()));
        // A request takes at most 5 microseconds here.
        assert!(rt.rt().now().0 - before.0 <= 5000, "{:?} to {:?}", before, rt.rt().now());
        (0..32).for_each(|page| assert_eq!(bench.generation(page), Some(1)));
    });
}

#[test]
fn a_page_that_comes_in_while_it_moves_has_its_own_bytes() {
    for seed in 0..200 {
        let _case = Case(format!("seed {seed}"));
        let rt = Virtual::new(Some(seed));
        let bench = Arc::new(Shape::default().bench_in(rt.rt()));
        rt.run(|| {
            bench.access(2, 3);
            bench.out(0..8, 1);
            bench.room.press(2);
            let mover = bench.clone();
            let tend = rt
                .rt()
                .spawn("tend", Box::new(move || while mover.swap.run_background_step().expect("the disk is well") {}));
            let other = bench.clone();
            // This writer takes the slots that become free.
            let writer = rt.rt().spawn("writer", Box::new(move || other.out(8..40, 7)));
            let mut bytes = vec![0; PAGE_BYTES];
            for page in 0..8 {
                bench.swap.page_in(PageNo(page), &mut bytes).expect("the disk is well");
                assert_eq!(generation_of(page, &bytes), Some(1));
            }
            bench.swap.page_out(&leaving(2..4, 2)).expect("there is room");
            [tend, writer].iter().for_each(|task| task.join(&*rt.rt()));
            let now: Vec<_> = (0..8).map(|page| bench.generation(page)).collect();
            assert_eq!(now, [1, 1, 2, 2, 1, 1, 1, 1].map(Some));
            bench.audit();
        });
    }
}
