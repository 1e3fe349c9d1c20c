//! What each block of a schedule cost, and how soon batches had followed it.

use omnilearn_devices::schedule::Schedule;

use crate::demo::RunRecords;

/// Share by which a batch may still differ from where it ends up, once it counts as settled.
const SETTLED: f64 = 0.2;

/// When a block began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BlockStart {
    /// Place of the block in the schedule.
    pub(crate) block: usize,
    /// Version of the parameters at that time.
    pub(crate) version: u64,
}

/// What was measured in one block.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockReport {
    /// How the cores were split.
    pub(crate) split: String,
    /// Passes over the training data.
    pub(crate) epochs: f64,
    /// Training time per epoch, in seconds.
    pub(crate) epoch_s: f64,
    /// Training time from the change of quotas until every batch was within a fifth of its mean over the block's second half.
    pub(crate) settled_s: f64,
    /// The same in steps.
    pub(crate) settled_steps: u64,
    /// Mean batch of each agent over the second half.
    pub(crate) batches: Vec<f64>,
}

/// Cuts a run at the versions at which blocks began. Blocks in which no step was made are left out.
pub(crate) fn blocks(schedule: &Schedule, run: &RunRecords, starts: &[BlockStart]) -> Vec<BlockReport> {
    let ends = starts.iter().skip(1).map(|next| next.version).chain([u64::MAX]);
    starts.iter().zip(ends).filter_map(|(start, end)| block(schedule, run, *start, end)).collect()
}

fn block(schedule: &Schedule, run: &RunRecords, start: BlockStart, end: u64) -> Option<BlockReport> {
    let split = schedule.blocks.get(start.block)?.describe();
    let began_s =
        run.steps.iter().filter(|step| step.version <= start.version).map(|step| step.at_s).fold(0.0, f64::max);
    let steps: Vec<_> = run.steps.iter().filter(|step| step.version > start.version && step.version <= end).collect();
    let ended_s = steps.iter().map(|step| step.at_s).reduce(f64::max)?;
    let last = steps.iter().map(|step| step.version).max()?;
    let samples: u64 = steps.iter().map(|step| u64::from(step.batch)).sum();
    let epochs = samples as f64 / f64::from(run.train_samples);
    let middle = start.version + (last - start.version) / 2;
    let mean = |agent: usize| {
        let late = steps.iter().filter(|step| step.agent == agent && step.version > middle);
        let (sum, count) = late.fold((0.0, 0.0), |(sum, count), step| (sum + f64::from(step.batch), count + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    };
    let batches: Vec<f64> = (0..run.agents.len()).map(mean).collect();
    // The end of an epoch cuts a step short; that says nothing of how the work is split.
    let total = |version: u64| -> f64 {
        steps.iter().filter(|step| step.version == version).map(|step| f64::from(step.batch)).sum()
    };
    let whole: f64 = batches.iter().sum();
    let is_whole = |version: u64| (total(version) - whole).abs() < 0.5 + 0.02 * whole;
    let is_off = |agent: usize, batch: u32| {
        let steady = batches[agent];
        (f64::from(batch) - steady).abs() > (SETTLED * steady).max(1.0)
    };
    let early = steps.iter().filter(|step| step.version <= middle && is_off(step.agent, step.batch));
    let unsettled = early.filter(|step| is_whole(step.version)).max_by_key(|step| step.version);
    Some(BlockReport {
        split,
        epochs,
        epoch_s: (ended_s - began_s) / epochs,
        settled_s: unsettled.map_or(0.0, |step| step.at_s - began_s),
        settled_steps: unsettled.map_or(0, |step| step.version - start.version),
        batches,
    })
}

/// The reports as a table.
pub(crate) fn table(reports: &[BlockReport]) -> String {
    let mut table = format!(
        "{:>5}  {:<12} {:>6} {:>9}  {:>18}  batches then\n",
        "block", "split", "epochs", "s/epoch", "settled after"
    );
    for (index, report) in reports.iter().enumerate() {
        let batches: Vec<String> = report.batches.iter().map(|batch| format!("{batch:.0}")).collect();
        table.push_str(&format!(
            "{:>5}  {:<12} {:>6.2} {:>9.2}  {:>5} steps, {:>4.1} s  {}\n",
            index + 1,
            report.split,
            report.epochs,
            report.epoch_s,
            report.settled_steps,
            report.settled_s,
            batches.join(" ")
        ));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::StepRecord;

    /// Two agents; a step takes 0.1 s, and from step 21 on 0.2 s. Batches change from 50:50 to 20:80 at step 24.
    fn run() -> RunRecords {
        let mut steps = Vec::new();
        let mut at_s = 0.0;
        for version in 1..=40_u64 {
            at_s += if version <= 20 { 0.1 } else { 0.2 };
            let batches = if version < 24 { [50, 50] } else { [20, 80] };
            for (agent, batch) in batches.into_iter().enumerate() {
                let epoch = u32::try_from((version - 1) / 10).unwrap();
                steps.push(StepRecord {
                    agent,
                    at_s,
                    version,
                    epoch,
                    batch,
                    staleness: 0,
                    wait_s: 0.0,
                    sustained_s: 0.1,
                    cpu_s: 0.1,
                    warm_up: false,
                });
            }
        }
        let agents = vec!["a".to_owned(), "b".to_owned()];
        RunRecords { agents, quotas: vec![0.5; 2], train_samples: 1000, steps, evaluations: Vec::new() }
    }

    fn schedule() -> Schedule {
        Schedule::parse("title = \"t\"\n[[blocks]]\nhl = 1\nepochs = 2.0\n[[blocks]]\nhl = 4\nepochs = 2.0").unwrap()
    }

    #[test]
    fn each_block_has_its_own_time_per_epoch_and_the_time_until_batches_had_followed() {
        let starts = [BlockStart { block: 0, version: 0 }, BlockStart { block: 1, version: 20 }];
        let reports = blocks(&schedule(), &run(), &starts);
        assert_eq!(reports.len(), 2);
        assert!((reports[0].epoch_s - 1.0).abs() < 1e-9 && (reports[1].epoch_s - 2.0).abs() < 1e-9, "{reports:?}");
        assert_eq!((reports[0].settled_steps, reports[1].settled_steps), (0, 3));
        assert!((reports[1].settled_s - 0.6).abs() < 1e-9, "{reports:?}");
        assert_eq!(reports[1].batches, [20.0, 80.0]);
        let table = table(&reports);
        assert!(table.contains("HL4") && table.contains("3 steps,  0.6 s  20 80"), "{table}");
    }

    #[test]
    fn a_block_in_which_nothing_happened_is_left_out() {
        let starts = [BlockStart { block: 0, version: 0 }, BlockStart { block: 1, version: 40 }];
        assert_eq!(blocks(&schedule(), &run(), &starts).len(), 1);
        assert!(blocks(&schedule(), &RunRecords::default(), &starts[..1]).is_empty());
    }
}
