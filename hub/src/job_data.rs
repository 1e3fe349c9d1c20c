//! The data of a job: found in the library or the catalogue, fitted to the kernel, and divided as the job file says.

use omnilearn_datasets::{Augmenter, Fit, Input, Library, Need, Needs, Outline, Target};
use omnilearn_hub_core::partition::{self, Division};
use omnilearn_kernel_host::backend::DType;
use omnilearn_kernel_host::{Description, SettingInfo, TensorSpec};
use omnilearn_wire::dataset;
use omnilearn_wire::message::{Augment, ManifestRef, Setting, SettingValue};
use omnilearn_wire::partition::Partition;

use crate::job_file::{DataSection, JobFile, PartitionName};
use crate::job_keys::nearest;
use crate::plan::PlanError;

/// What a job learns from.
#[derive(Clone)]
pub(crate) struct JobData {
    /// Shapes and numbers of samples.
    pub(crate) fit: Fit,
    /// Where agents can fetch it; none for a data set of the catalogue that each has on its own disk.
    pub(crate) manifest: Option<ManifestRef>,
    pub(crate) augment: Augment,
    pub(crate) partition: Partition,
    /// Samples of each part; none where the training set is not divided.
    pub(crate) parts: Vec<u32>,
}

/// A data set that a job names.
struct Named {
    outline: Outline,
    found: Option<omnilearn_datasets::library::Found>,
}

fn value(key: &'static str, problem: impl Into<String>) -> PlanError {
    PlanError::Value { key, problem: problem.into() }
}

/// What a kernel wants of each sample.
fn needs(description: &Description) -> Needs {
    let need = |TensorSpec { name, dtype, shape }: &TensorSpec| Need {
        name: name.clone(),
        integers: *dtype == DType::I32,
        shape: shape.clone(),
    };
    Needs { inputs: description.inputs.iter().map(need).collect(), target: need(&description.target) }
}

impl JobData {
    /// Finds the data set and checks everything that needs no agent. Reads labels where the training set is divided by them, so it may
    /// take a while.
    ///
    /// # Errors
    /// [`PlanError`] with the key and what to write instead.
    pub(crate) fn new(
        file: &JobFile,
        library: &Library,
        description: &Description,
        (known, given): (&[SettingInfo], &[Setting]),
    ) -> Result<JobData, PlanError> {
        let Named { outline, found } = find(&file.dataset, library)?;
        let fit =
            outline.fit(&needs(description)).map_err(|error| PlanError::Mismatch { problem: error.to_string() })?;
        check_sizes(known, given, &outline)?;
        let augment = augment(&file.data, &outline)?;
        let mut data = JobData {
            manifest: found.as_ref().map(|found| ManifestRef { digest: found.digest, bytes: found.bytes }),
            fit,
            augment,
            partition: Partition::Shared,
            parts: Vec::new(),
        };
        if file.data.partition != PartitionName::Shared {
            data.divide(file, library, &outline, found.as_ref())?;
        }
        Ok(data)
    }

    fn divide(
        &mut self,
        file: &JobFile,
        library: &Library,
        outline: &Outline,
        found: Option<&omnilearn_datasets::library::Found>,
    ) -> Result<(), PlanError> {
        const KEY: &str = "[data] partition";
        let section = &file.data;
        let parts = section.parts.or(file.fleet.wait_for_agents).unwrap_or(file.fleet.agents_min);
        let samples = self.fit.train_samples;
        let classes = match outline.form.target {
            Target::Classes { count } => Some(count),
            _ => None,
        };
        let division = match section.partition {
            PartitionName::Shared | PartitionName::Iid => Division::Even,
            PartitionName::Dirichlet => Division::Dirichlet { alpha: section.alpha },
            PartitionName::Labels => Division::Labels { labels_per_part: section.labels_per_agent },
            PartitionName::Key => Division::Groups,
        };
        let by_class = matches!(division, Division::Dirichlet { .. } | Division::Labels { .. });
        if by_class && classes.is_none() {
            return Err(value(
                KEY,
                format!("samples of {} have no classes; \"iid\" and \"shared\" need none", outline.name),
            ));
        }
        if division == Division::Groups && !outline.form.grouped {
            let problem = format!(
                "samples of {} have no keys; `omnilearn-hub dataset add --key COLUMN` keeps them",
                outline.name
            );
            return Err(value(KEY, problem));
        }
        let strata = match (division, found) {
            (Division::Even, _) => Vec::new(),
            (_, None) => {
                let problem = format!(
                    "the hub needs the labels of {0}, which only agents have: add it here with `omnilearn-hub dataset add {0} FOLDER`",
                    outline.name
                );
                return Err(value(KEY, problem));
            }
            (_, Some(found)) => {
                let opened = library.open(&found.manifest).and_then(|dataset| dataset.train().strata());
                opened.map_err(|error| value(KEY, error.to_string()))?
            }
        };
        let mut class_sizes = vec![0; classes.filter(|_| by_class).unwrap_or(0) as usize];
        for &(class, _) in strata.iter().filter(|_| by_class) {
            class_sizes[class as usize] += 1;
        }
        self.partition = partition::divide(division, parts, samples, &class_sizes, file.seed)
            .map_err(|error| value(KEY, error.to_string()))?;
        let members = self.partition.members(file.seed, samples, &strata);
        let members = members.map_err(|error| value(KEY, error.to_string()))?;
        self.parts = members.iter().map(|members| members.len() as u32).collect();
        Ok(())
    }
}

fn find(name: &str, library: &Library) -> Result<Named, PlanError> {
    let broken = |error: omnilearn_datasets::LibraryError| value("dataset", error.to_string());
    if let Some(found) = library.find(name).map_err(broken)? {
        return Ok(Named { outline: found.manifest.outline(), found: Some(found) });
    }
    if let Some(spec) = dataset::find(name) {
        return Ok(Named { outline: Outline::of_catalogue(spec), found: None });
    }
    let added = library.list().map_err(broken)?;
    let known = || dataset::CATALOGUE.iter().map(|dataset| dataset.name).chain(added.iter().map(String::as_str));
    let advice = match nearest(name, known()) {
        Some(nearest) => format!("did you mean \"{nearest}\"?"),
        None => format!("known: {}; `omnilearn-hub dataset add` takes others", known().collect::<Vec<_>>().join(", ")),
    };
    Err(value("dataset", format!("no data set is named \"{name}\", {advice}")))
}

/// A kernel whose outputs are classes or tokens has a setting that says how many, by convention; too few would trap at the first one
/// beyond them, on an agent.
fn check_sizes(known: &[SettingInfo], given: &[Setting], outline: &Outline) -> Result<(), PlanError> {
    let (setting, what, needed) = match (&outline.form.input, &outline.form.target) {
        (Input::Tokens { vocabulary, .. }, _) => ("vocabulary", "different tokens", *vocabulary),
        (_, Target::Classes { count }) => ("classes", "classes", *count),
        _ => return Ok(()),
    };
    let given = given.iter().find(|given| given.name == setting).map(|setting| &setting.value);
    let default = known.iter().find(|known| known.name == setting).map(|setting| &setting.default);
    match given.or(default) {
        Some(SettingValue::Integer(has)) if *has < i64::from(needed) => Err(PlanError::Mismatch {
            problem: format!(
                "{} has {needed} {what}, the kernel is set to {has}; write `{setting} = {needed}` under [kernel.settings]",
                outline.name
            ),
        }),
        _ => Ok(()),
    }
}

fn augment(section: &DataSection, outline: &Outline) -> Result<Augment, PlanError> {
    let augment = Augment { flip: section.augment.flip, crop_padding: section.augment.crop_padding };
    let possible = Augmenter::new(&outline.form, augment.flip, augment.crop_padding).is_some();
    if augment.is_none() || possible {
        return Ok(augment);
    }
    Err(value(
        "[data] augment",
        match outline.form.image() {
            Some([_, height, width]) => format!(
                "crop_padding = {} is not less than the images' {height} by {width} pixels",
                augment.crop_padding
            ),
            None => format!("samples of {} are no images", outline.name),
        },
    ))
}
