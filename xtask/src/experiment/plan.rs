//! From a definition to rows, and from a row to the files that the simulator reads.

use std::path::Path;

use anyhow::{Context, bail};
use toml::{Table, Value};

use super::catalogue::{Catalogue, ModelSpec, Speed, Variant, lay_over};
use super::definition::{Case, Definition, Gradients, Overhead};
use super::outcome::RowKey;
use crate::demo::table;

/// A row that is to run.
#[derive(Clone, Debug)]
pub(crate) struct PlannedRow<'a> {
    /// Which.
    pub(crate) key: RowKey,
    /// What it belongs to.
    pub(crate) case: &'a Case,
    /// What is trained.
    pub(crate) model: &'a ModelSpec,
    mode: &'a Variant,
    policy: &'a Variant,
    /// Cores of each agent, level after level; one level unless there is a schedule.
    cores: Vec<Vec<f64>>,
}

/// All rows of a definition, in the order in which they run.
///
/// # Errors
/// When a level's cores differ in number from another's of the same schedule.
pub(crate) fn rows<'a>(definition: &'a Definition, catalogue: &'a Catalogue) -> anyhow::Result<Vec<PlannedRow<'a>>> {
    let mut rows = Vec::new();
    for case in &definition.cases {
        let levels: Vec<Vec<u32>> = match &case.schedule {
            Some(schedule) => vec![schedule.hl.clone()],
            None => case.hl.iter().map(|&level| vec![level]).collect(),
        };
        for name in &case.models {
            let model = catalogue.models.get(name).with_context(|| format!("no model `{name}`"))?;
            for level in &levels {
                let agent_numbers =
                    if case.agents.is_empty() { vec![None] } else { case.agents.iter().map(Some).collect() };
                for agents in agent_numbers {
                    let cores = level
                        .iter()
                        .map(|&level| {
                            let cores = definition.cores(level).with_context(|| format!("no level {level}"))?;
                            let agents = agents.map_or(cores.len(), |&agents| agents as usize);
                            Ok(cores.iter().copied().cycle().take(agents).collect())
                        })
                        .collect::<anyhow::Result<Vec<Vec<f64>>>>()?;
                    let agents = cores.first().map_or(0, Vec::len);
                    if cores.iter().any(|cores| cores.len() != agents) {
                        bail!("{}: the levels of a schedule must have equally many agents", case.name);
                    }
                    for mode in &case.modes {
                        for policy in &case.policies {
                            rows.push(PlannedRow {
                                key: RowKey {
                                    case: case.name.clone(),
                                    model: name.clone(),
                                    hl: level.iter().copied().max().unwrap_or(1),
                                    agents: u32::try_from(agents).context("too many agents")?,
                                    mode: mode.clone(),
                                    policy: policy.clone(),
                                },
                                case,
                                model,
                                mode: catalogue.modes.get(mode).with_context(|| format!("no mode `{mode}`"))?,
                                policy: catalogue
                                    .policies
                                    .get(policy)
                                    .with_context(|| format!("no policy `{policy}`"))?,
                                cores: cores.clone(),
                            });
                        }
                    }
                }
            }
        }
    }
    Ok(rows)
}

impl PlannedRow<'_> {
    /// Cores of each agent, at the first level.
    pub(crate) fn cores(&self) -> &[f64] {
        self.cores.first().map_or(&[], Vec::as_slice)
    }

    /// What rows have in common that differ in how batches are set alone.
    pub(crate) fn place(&self) -> (&str, &str, u32, u32, &str) {
        let RowKey { case, model, hl, agents, mode, .. } = &self.key;
        (case, model, *hl, *agents, mode)
    }

    /// Whether the row trains by itself.
    pub(crate) fn trains(&self) -> bool {
        self.case.gradients == Gradients::Real
    }

    /// A name for the training that this row shares with others of its model.
    pub(crate) fn training_slug(&self, seed: u64) -> String {
        format!("{}-{}-seed-{seed}", self.key.model, self.key.agents)
    }

    /// Fleet and job of that training: equal agents and equal batches, so that they do not depend on the row.
    ///
    /// # Errors
    /// When they cannot be written as TOML.
    pub(crate) fn training_files(&self, component: &Path, seed: u64) -> anyhow::Result<(String, String)> {
        let speed = self.core_speed()?;
        let agents = (0..self.key.agents as usize).map(|index| agent(index, speed, 0.0, Vec::new()).into());
        let fleet = fleet(seed, agents.collect())?;
        let mut job: Table = self.job_file(component, seed)?.parse().context("reading a job file of our own")?;
        // The rows may go on for longer, which costs them nothing.
        if let Some(stop) = self.model.job.get("stop") {
            job.insert("stop".to_owned(), stop.clone());
        }
        job.insert("batching".to_owned(), table([("policy", "uniform".into())]).into());
        job.insert("name".to_owned(), self.training_slug(seed).into());
        Ok((fleet, toml::to_string(&job).context("writing a job file")?))
    }

    /// How fast one core is with the model.
    ///
    /// # Errors
    /// When nobody has measured it.
    pub(crate) fn core_speed(&self) -> anyhow::Result<Speed> {
        self.model
            .speed
            .with_context(|| format!("nobody has measured how fast {} is; `--calibrate` does", self.key.model))
    }

    /// The fleet file.
    ///
    /// # Errors
    /// When the model's speed is not known, or it cannot be written as TOML.
    pub(crate) fn fleet_file(&self, seed: u64) -> anyhow::Result<String> {
        let speed = self.core_speed()?;
        let first = self.cores.first().context("a row without a level")?;
        let scale = self.case.cores_total.map_or(1.0, |total| total / first.iter().sum::<f64>());
        let agents = first.iter().enumerate().map(|(index, &cores)| {
            let changes = self.cores.iter().enumerate().skip(1).map(|(block, level)| {
                let epochs_each = self.case.schedule.as_ref().map_or(0, |schedule| schedule.epochs_each);
                // A change to the level that holds already is said, too: a reader sees the whole schedule.
                table([
                    ("at_epoch", Value::Integer(i64::from(epochs_each) * block as i64)),
                    ("speed", Value::Float(level[index] / cores)),
                ])
            });
            let overhead_s = match self.case.overhead {
                Overhead::None => 0.0,
                Overhead::Measured => speed.overhead_s / (cores * scale).min(1.0),
            };
            let speed = Speed { samples_per_s: cores * scale * speed.samples_per_s, overhead_s };
            agent(index, speed, self.case.noise, changes.collect()).into()
        });
        fleet(seed, agents.collect())
    }

    /// The job file for a seed. `component` is the kernel's.
    ///
    /// # Errors
    /// When it cannot be written as TOML.
    pub(crate) fn job_file(&self, component: &Path, seed: u64) -> anyhow::Result<String> {
        let component = component.to_str().context("the workspace's path is not UTF-8")?;
        let agents = i64::from(self.key.agents);
        let mut job = table([
            ("name", self.key.slug().into()),
            ("seed", i64::try_from(seed).context("the seed is too large")?.into()),
            ("dataset", self.model.dataset.as_str().into()),
            ("kernel", table([("path", component.into())]).into()),
            ("fleet", table([("wait_for_agents", agents.into())]).into()),
        ]);
        lay_over(&mut job, &self.model.job);
        if self.case.job.contains_key("stop") {
            // A job ends at the first condition that is met: another end takes the place of all of them.
            job.remove("stop");
        }
        lay_over(&mut job, &self.case.job);
        if let Some(batch) = self.case.batch_per_agent {
            let global_batch = Value::Integer(i64::from(batch) * agents);
            lay_over(&mut job, &table([("training", table([("global_batch", global_batch)]).into())]));
        }
        if let Some(schedule) = &self.case.schedule {
            let epochs = i64::from(schedule.epochs_each) * schedule.hl.len() as i64;
            job.insert("stop".to_owned(), table([("epochs", epochs.into())]).into());
        }
        if self.mode.update_per_agent {
            more_steps(&mut job, agents);
        }
        if self.mode.whole_update {
            smaller_steps(&mut job, agents);
        }
        lay_over(&mut job, &self.mode.job);
        lay_over(&mut job, &self.policy.job);
        toml::to_string(&job).context("writing a job file")
    }
}

/// A fleet file of these agents.
///
/// # Errors
/// When it cannot be written as TOML.
pub(crate) fn fleet(seed: u64, agents: Vec<Value>) -> anyhow::Result<String> {
    let seed = i64::try_from(seed).context("the seed is too large")?;
    toml::to_string(&table([("seed", seed.into()), ("agents", agents.into())])).context("writing a fleet file")
}

/// An agent of a fleet file.
pub(crate) fn agent(index: usize, speed: Speed, noise: f64, changes: Vec<Table>) -> Table {
    let mut agent = table([
        ("name", format!("agent-{}", index + 1).into()),
        ("samples_per_s", speed.samples_per_s.into()),
        ("overhead_s", speed.overhead_s.into()),
        ("noise", noise.into()),
    ]);
    if !changes.is_empty() {
        agent.insert("changes".to_owned(), changes.into_iter().map(Value::Table).collect::<Vec<_>>().into());
    }
    agent
}

/// Makes a job whose steps are all agents' into one whose steps are one agent's: there are as many more of them.
fn more_steps(job: &mut Table, agents: i64) {
    let keys =
        [("evaluate", "every_steps"), ("stop", "steps"), ("schedule", "warmup_steps"), ("schedule", "total_steps")];
    for (section, key) in keys {
        if let Some(Value::Integer(steps)) = job.get_mut(section).and_then(|section| section.get_mut(key)) {
            *steps = steps.saturating_mul(agents);
        }
    }
}

/// Makes each step go less far.
fn smaller_steps(job: &mut Table, agents: i64) {
    if let Some(Value::Float(rate)) = job.get_mut("optimizer").and_then(|section| section.get_mut("learning_rate")) {
        *rate /= agents as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CATALOGUE, catalogue, definition};
    use super::*;

    fn parsed(text: &str) -> Table {
        text.parse().unwrap()
    }

    #[test]
    fn rows_are_every_combination_in_order() {
        let (definition, catalogue) = (definition(), catalogue());
        let rows = rows(&definition, &catalogue).unwrap();
        let shown: Vec<String> = rows.iter().map(|row| row.key.slug()).collect();
        let expected = [
            "plain-lenet-hl1-4-bsp-uniform",
            "plain-lenet-hl1-4-bsp-deadline",
            "plain-lenet-hl1-4-asp-uniform",
            "plain-lenet-hl1-4-asp-deadline",
            "plain-lenet-hl8-4-bsp-uniform",
            "plain-lenet-hl8-4-bsp-deadline",
            "plain-lenet-hl8-4-asp-uniform",
            "plain-lenet-hl8-4-asp-deadline",
            "changing-lenet-hl8-4-bsp-uniform",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_agent_is_as_fast_as_its_cores_and_has_no_overhead_unless_asked_for() {
        let (definition, catalogue) = (definition(), catalogue());
        let rows = rows(&definition, &catalogue).unwrap();
        let row = rows.iter().find(|row| row.key.hl == 8 && row.case.schedule.is_none()).unwrap();
        let fleet = parsed(&row.fleet_file(7).unwrap());
        assert_eq!(fleet["seed"].as_integer(), Some(7));
        let speeds: Vec<f64> = fleet["agents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|agent| agent["samples_per_s"].as_float().unwrap())
            .collect();
        assert_eq!(speeds, [6000.0, 6000.0, 4000.0, 32000.0]);
        assert_eq!(fleet["agents"][0]["overhead_s"].as_float(), Some(0.0));
    }

    #[test]
    fn a_schedule_changes_speeds_at_epochs_and_sets_the_length() {
        let (definition, catalogue) = (definition(), catalogue());
        let rows = rows(&definition, &catalogue).unwrap();
        let row = rows.iter().find(|row| row.case.schedule.is_some()).unwrap();
        let fleet = parsed(&row.fleet_file(1).unwrap());
        let changes = fleet["agents"][3]["changes"].as_array().unwrap();
        assert_eq!(changes[0]["at_epoch"].as_integer(), Some(2));
        assert!((changes[0]["speed"].as_float().unwrap() - 32.0 / 12.0).abs() < 1e-9);
        assert_eq!(changes[1]["speed"].as_float(), Some(1.0));
        assert_eq!(fleet["agents"][3]["overhead_s"].as_float(), Some(0.002));
        let job = parsed(&row.job_file(Path::new("lenet.wasm"), 1).unwrap());
        assert_eq!(job["stop"]["epochs"].as_integer(), Some(6));
    }

    #[test]
    fn another_end_takes_the_place_of_the_models() {
        let (definition, mut catalogue) = (definition().quick(), catalogue());
        let model = catalogue.models.get_mut("lenet").unwrap();
        model.job.insert("stop".to_owned(), table([("epochs", 3.into())]).into());
        let rows = rows(&definition, &catalogue).unwrap();
        let job = parsed(&rows[0].job_file(Path::new("lenet.wasm"), 1).unwrap());
        assert_eq!(job["stop"], Value::Table(table([("steps", 40.into())])));
        let (_, training) = rows[0].training_files(Path::new("lenet.wasm"), 1).unwrap();
        assert_eq!(parsed(&training)["stop"], Value::Table(table([("epochs", 3.into())])));
    }

    #[test]
    fn overhead_is_longer_for_an_agent_with_less_than_a_core() {
        let (mut definition, catalogue) = (definition(), catalogue());
        definition.cases[1].cores_total = Some(2.0);
        let rows = rows(&definition, &catalogue).unwrap();
        let fleet = parsed(&rows.last().unwrap().fleet_file(1).unwrap());
        assert!((fleet["agents"][0]["samples_per_s"].as_float().unwrap() - 500.0).abs() < 1e-9);
        assert!((fleet["agents"][0]["overhead_s"].as_float().unwrap() - 0.004).abs() < 1e-9);
    }

    #[test]
    fn an_asynchronous_job_has_more_and_smaller_steps() {
        let (definition, catalogue) = (definition(), catalogue());
        let rows = rows(&definition, &catalogue).unwrap();
        let job = |mode: &str| {
            let row = rows.iter().find(|row| row.key.mode == mode && row.key.policy == "deadline").unwrap();
            parsed(&row.job_file(Path::new("/k/lenet.wasm"), 3).unwrap())
        };
        let (bsp, asp) = (job("bsp"), job("asp"));
        assert_eq!(bsp["optimizer"]["learning_rate"].as_float(), Some(0.04));
        assert_eq!(asp["optimizer"]["learning_rate"].as_float(), Some(0.01));
        assert_eq!(asp["evaluate"]["every_steps"].as_integer(), Some(400));
        assert_eq!(asp["training"]["mode"].as_str(), Some("asp"));
        assert_eq!(asp["training"]["global_batch"].as_integer(), Some(128));
        assert_eq!(asp["batching"]["controller"].as_str(), Some("deadline"));
        assert_eq!(asp["kernel"]["path"].as_str(), Some("/k/lenet.wasm"));
        assert!(CATALOGUE.contains("every_steps = 100"));
    }
}
