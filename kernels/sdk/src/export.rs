//! Turns a Rust type into a component.

use std::sync::OnceLock;

use crate::bindings::exports::omnilearn::kernel::model;
use crate::{Builder, Mode, Pass, Settings, Tensor};

/// A model in full generality. Models that classify implement [`Classifier`](crate::Classifier) instead.
pub trait Kernel: Sized + Send + Sync + 'static {
    /// See [`settings!`](crate::settings!).
    type Settings: Settings;

    /// Names inputs, target, parameters, buffers and metrics. The error is a sentence for the job's author.
    ///
    /// # Errors
    /// Settings that do not go together.
    fn build(settings: Self::Settings, build: &mut Builder) -> Result<Self, String>;

    /// Computes one batch. Targets are absent if the pass only predicts.
    ///
    /// # Errors
    /// What keeps this kernel from computing the batch.
    fn forward(&self, inputs: Vec<Tensor>, targets: Option<Tensor>, pass: &mut Pass) -> Result<Output, String>;
}

/// Result of a forward pass; the buffers are in the [`Pass`].
pub struct Output {
    /// Mean over the batch, `[1]`; absent if the pass only predicts.
    pub loss: Option<Tensor>,
    /// Logits or predictions, batch first.
    pub outputs: Vec<Tensor>,
    /// Sums over the batch, each `[1]`; none if the pass only predicts.
    pub metrics: Vec<Tensor>,
}

impl Output {
    /// Output of a kernel that compares one tensor with the targets. `judge` is one of those in [`loss`](crate::loss): of
    /// outputs and targets it makes the loss and the only metric. A pass that only predicts has neither.
    ///
    /// # Errors
    /// A pass that learns without targets.
    pub fn judged(
        outputs: Tensor,
        targets: Option<Tensor>,
        pass: &Pass,
        judge: impl FnOnce(&Tensor, &Tensor) -> (Tensor, Tensor),
    ) -> Result<Output, String> {
        if pass.mode() == Mode::Predict {
            return Ok(Output { loss: None, outputs: vec![outputs], metrics: Vec::new() });
        }
        let targets = targets.ok_or("a batch to learn from has no targets")?;
        let (loss, metric) = judge(&outputs, &targets);
        Ok(Output { loss: Some(loss), outputs: vec![outputs], metrics: vec![metric] })
    }
}

/// The input of a kernel that has one.
///
/// # Errors
/// Another number of inputs.
pub fn only_input(inputs: Vec<Tensor>) -> Result<Tensor, String> {
    let [input] = <[Tensor; 1]>::try_from(inputs)
        .map_err(|inputs| format!("this kernel takes one input and got {}", inputs.len()))?;
    Ok(input)
}

/// Where a component keeps its configured kernel.
#[doc(hidden)]
pub struct Slot<K>(OnceLock<K>);

impl<K: Kernel> Default for Slot<K> {
    fn default() -> Self {
        Slot::new()
    }
}

impl<K: Kernel> Slot<K> {
    pub const fn new() -> Slot<K> {
        Slot(OnceLock::new())
    }

    pub fn settings(&self) -> Vec<model::SettingInfo> {
        K::Settings::infos()
    }

    pub fn describe(&self, settings: Vec<model::Setting>) -> Result<model::Description, String> {
        let mut build = Builder::default();
        let kernel = K::build(K::Settings::read(settings)?, &mut build)?;
        self.0.set(kernel).map_err(|_| "this instance is already configured")?;
        Ok(build.finish())
    }

    pub fn forward(&self, batch: model::Batch) -> Result<model::Output, String> {
        let kernel = self.0.get().ok_or("`describe` comes before `forward`")?;
        let mut pass = Pass::new(batch.mode, batch.parameters, batch.buffers, batch.seed);
        let Output { loss, outputs, metrics } = kernel.forward(batch.inputs, batch.targets, &mut pass)?;
        Ok(model::Output { loss, outputs, buffers: pass.into_buffers(), metrics })
    }
}

/// Exports a [`Kernel`] or [`Classifier`](crate::Classifier) as this crate's component. Use it once, in a `cdylib`.
#[macro_export]
macro_rules! export_kernel {
    ($kernel:ty) => {
        const _: () = {
            use $crate::bindings::exports::omnilearn::kernel::model;

            static SLOT: $crate::Slot<$kernel> = $crate::Slot::new();

            struct Component;

            impl model::Guest for Component {
                fn settings() -> ::std::vec::Vec<model::SettingInfo> {
                    SLOT.settings()
                }

                fn describe(
                    settings: ::std::vec::Vec<model::Setting>,
                ) -> ::std::result::Result<model::Description, ::std::string::String> {
                    SLOT.describe(settings)
                }

                fn forward(batch: model::Batch) -> ::std::result::Result<model::Output, ::std::string::String> {
                    SLOT.forward(batch)
                }
            }

    $crate::bindings::export_component!(Component with_types_in $crate::bindings);
        };
    };
}
