//! Which device computes: `--device auto|cpu|gpu|gpu:N`.

use std::fmt;
use std::str::FromStr;

use crate::engine::{Engine, Operators};

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU that is worth using, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The best GPU, or none at all.
    Gpu,
    /// The GPU of this number in the list that `omnilearn-agent probe` shows, whatever it is.
    GpuAt(usize),
}

/// A text that names no device.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not auto, cpu, gpu or gpu:N with the number of an adapter")]
pub struct UnknownDevice(String);

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        let unknown = || UnknownDevice(text.to_owned());
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "gpu" => Ok(Self::Gpu),
            _ => Ok(Self::GpuAt(text.strip_prefix("gpu:").ok_or_else(unknown)?.parse().map_err(|_| unknown())?)),
        }
    }
}

/// A graphics adapter and whether `auto` would take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Such as `NVIDIA Jetson Orin (integrated, Vulkan)`.
    pub name: String,
    /// Why `auto` and `gpu` pass it over, if they do.
    pub rejected: Option<String>,
}

impl fmt::Display for Adapter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = self.rejected.as_deref().unwrap_or("usable");
        write!(formatter, "{}: {verdict}", self.name)
    }
}

/// What was found and what was taken.
#[derive(Clone)]
pub struct Selected {
    /// Computes.
    pub engine: Engine,
    /// All graphics adapters; `gpu:N` takes the one at place N.
    pub adapters: Vec<Adapter>,
}

/// The GPU that was asked for cannot be had.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// The program was built without.
    #[error("this build computes on the CPU only; use one with GPU support (`--features gpu`), or --device cpu")]
    NotBuilt,
    /// No adapter will do.
    #[error("no usable GPU: {}; use --device cpu{}", listed(adapters), forced(adapters))]
    NoneUsable {
        /// What was seen.
        adapters: Vec<Adapter>,
    },
    /// There are fewer.
    #[error("there is no gpu:{number}: {}", listed(adapters))]
    NoSuch {
        /// What was asked for.
        number: usize,
        /// What was seen.
        adapters: Vec<Adapter>,
    },
    /// The adapter was found but does not work.
    #[error("{name}: {reason}; use --device cpu, or another adapter")]
    Broken {
        /// The adapter.
        name: String,
        /// What it, or its driver, says.
        reason: String,
    },
}

fn listed(adapters: &[Adapter]) -> String {
    if adapters.is_empty() {
        return "no graphics adapter was seen (in a container, is its device passed in and its driver installed?)"
            .to_owned();
    }
    let line = |(number, adapter): (usize, &Adapter)| format!("gpu:{number} is {adapter}");
    adapters.iter().enumerate().map(line).collect::<Vec<_>>().join("; ")
}

fn forced(adapters: &[Adapter]) -> &'static str {
    if adapters.is_empty() { "" } else { ", or --device gpu:N to use one all the same" }
}

/// Looks for adapters and takes what was asked for. `auto` never fails.
///
/// # Errors
/// [`NoGpu`] if a GPU was asked for and there is none.
pub fn select(choice: DeviceChoice) -> Result<Selected, NoGpu> {
    let cpu = |adapters| Ok(Selected { engine: Engine::cpu(Operators::Own), adapters });
    if choice == DeviceChoice::Cpu {
        return cpu(Vec::new());
    }
    if choice != DeviceChoice::Auto && !cfg!(feature = "gpu") {
        return Err(NoGpu::NotBuilt);
    }
    let found = gpu::find();
    let adapters: Vec<Adapter> = found.iter().map(gpu::Found::adapter).cloned().collect();
    let usable = || found.iter().find(|found| found.adapter().rejected.is_none());
    let chosen = match choice {
        DeviceChoice::GpuAt(number) => found.get(number),
        _ => usable(),
    };
    match (choice, chosen.map(gpu::Found::open)) {
        (_, Some(Ok(engine))) => Ok(Selected { engine, adapters }),
        (DeviceChoice::Auto, failed) => {
            if let Some(Err(error)) = failed {
                tracing::warn!(%error, "computing on the CPU instead");
            }
            cpu(adapters)
        }
        (_, Some(Err(error))) => Err(error),
        (DeviceChoice::GpuAt(number), None) => Err(NoGpu::NoSuch { number, adapters }),
        (_, None) => Err(NoGpu::NoneUsable { adapters }),
    }
}

/// GPUs through wgpu.
#[cfg(feature = "gpu")]
mod gpu {
    use std::collections::BTreeMap;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Mutex, PoisonError};

    use burn::tensor::wgpu::{WgpuBackend, wgpu};
    use burn::tensor::{Device, DeviceKind};
    use futures_util::FutureExt;
    use omnilearn_kernel_host::backend::TensorBackend;
    use omnilearn_kernel_host::panic_text;

    use super::{Adapter, Engine, NoGpu};

    /// Bytes that one tensor must be able to have on a device that is worth using.
    const TENSOR_BYTES_MIN: u64 = 128 << 20;

    /// The graphics interfaces, best first.
    const INTERFACES: [(wgpu::Backend, WgpuBackend); 3] = [
        (wgpu::Backend::Vulkan, WgpuBackend::Vulkan),
        (wgpu::Backend::Metal, WgpuBackend::Metal),
        (wgpu::Backend::Dx12, WgpuBackend::Dx12),
    ];

    /// Devices that this process has started, by name and number: machines have several of one name.
    static OPENED: Mutex<BTreeMap<(String, usize), Engine>> = Mutex::new(BTreeMap::new());

    /// An adapter, and how Burn finds it.
    pub(super) struct Found {
        adapter: Adapter,
        kind: wgpu::DeviceType,
        api: WgpuBackend,
        /// Among those of its kind and interface.
        number: usize,
    }

    /// All adapters, those that are worth using first, discrete ones before integrated ones.
    pub(super) fn find() -> Vec<Found> {
        let mut found = Vec::new();
        for (interface, api) in INTERFACES {
            let backends = wgpu::Backends::from(interface);
            let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
                backends,
                ..wgpu::InstanceDescriptor::new_without_display_handle()
            });
            // Outside a browser, the list is there at once.
            let adapters = instance.enumerate_adapters(backends).now_or_never().unwrap_or_default();
            // Burn numbers the devices of each type by themselves.
            let mut seen: Vec<wgpu::DeviceType> = Vec::new();
            for adapter in adapters {
                let info = adapter.get_info();
                let number = seen.iter().filter(|kind| **kind == info.device_type).count();
                seen.push(info.device_type);
                let kind = match info.device_type {
                    wgpu::DeviceType::DiscreteGpu => "discrete",
                    wgpu::DeviceType::IntegratedGpu => "integrated",
                    wgpu::DeviceType::VirtualGpu => "virtual",
                    wgpu::DeviceType::Cpu => "software",
                    wgpu::DeviceType::Other => "other",
                };
                let name = format!("{} ({kind}, {})", info.name, interface.to_str());
                let adapter = Adapter { name, rejected: rejection(&adapter, &info) };
                found.push(Found { adapter, kind: info.device_type, api, number });
            }
        }
        let rank = |kind: wgpu::DeviceType| match kind {
            wgpu::DeviceType::DiscreteGpu => 0,
            wgpu::DeviceType::VirtualGpu => 1,
            wgpu::DeviceType::IntegratedGpu => 2,
            wgpu::DeviceType::Other => 3,
            wgpu::DeviceType::Cpu => 4,
        };
        found.sort_by_key(|found| (found.adapter.rejected.is_some(), rank(found.kind)));
        found
    }

    /// Why an adapter is of no use.
    fn rejection(adapter: &wgpu::Adapter, info: &wgpu::AdapterInfo) -> Option<String> {
        if info.device_type == wgpu::DeviceType::Cpu {
            return Some("it is a program that runs on the CPU, where our own operators are faster".to_owned());
        }
        if !adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
            return Some("it has no compute shaders".to_owned());
        }
        let limits = adapter.limits();
        let tensor_bytes = u64::from(limits.max_storage_buffer_binding_size).min(limits.max_buffer_size);
        (tensor_bytes < TENSOR_BYTES_MIN)
            .then(|| format!("a tensor may have {} MiB, {} are needed", tensor_bytes >> 20, TENSOR_BYTES_MIN >> 20))
    }

    impl Found {
        pub(super) fn adapter(&self) -> &Adapter {
            &self.adapter
        }

        /// Starts it, and computes something on it.
        pub(super) fn open(&self) -> Result<Engine, NoGpu> {
            let name = &self.adapter.name;
            let broken = |reason: String| NoGpu::Broken { name: name.clone(), reason };
            // A process starts a device once.
            let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
            let place = (name.clone(), self.number);
            if let Some(engine) = opened.get(&place) {
                return Ok(engine.clone());
            }
            let kind = match self.kind {
                wgpu::DeviceType::DiscreteGpu => DeviceKind::DiscreteGpu(self.number),
                wgpu::DeviceType::IntegratedGpu => DeviceKind::IntegratedGpu(self.number),
                wgpu::DeviceType::VirtualGpu => DeviceKind::VirtualGpu(self.number),
                wgpu::DeviceType::Cpu => DeviceKind::Cpu,
                wgpu::DeviceType::Other => DeviceKind::DefaultDevice,
            };
            // Drivers fail by panics of the libraries above them, too.
            let trial = catch_unwind(AssertUnwindSafe(|| {
                let options = Device::wgpu_options().device_kind(kind).graphics_api(self.api);
                let mut engine = Engine::gpu(&options.init().map_err(|error| error.to_string())?, name);
                let two = engine.full(2.0, &[64, 64]).map_err(|error| error.to_string())?;
                let product = engine.matmul(&two, &two).map_err(|error| error.to_string())?.to_vec();
                match product.iter().find(|&&value| value != 256.0) {
                    Some(value) => Err(format!("a product of matrices gave {value} instead of 256")),
                    None => Ok(engine),
                }
            }));
            match trial {
                Ok(Ok(engine)) => {
                    opened.insert(place, engine.clone());
                    Ok(engine)
                }
                Ok(Err(reason)) => Err(broken(reason)),
                Err(panic) => Err(broken(panic_text(&*panic).to_owned())),
            }
        }
    }
}

/// No GPUs in this build.
#[cfg(not(feature = "gpu"))]
mod gpu {
    use super::{Adapter, Engine, NoGpu};

    /// There is none.
    pub(super) enum Found {}

    pub(super) fn find() -> Vec<Found> {
        Vec::new()
    }

    impl Found {
        pub(super) fn adapter(&self) -> &Adapter {
            match *self {}
        }

        pub(super) fn open(&self) -> Result<Engine, NoGpu> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_users_write_them() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("gpu", DeviceChoice::Gpu),
            ("gpu:1", DeviceChoice::GpuAt(1)),
        ] {
            assert_eq!(text.parse(), Ok(choice));
        }
        for text in ["", "GPU", "gpu:", "gpu:-1", "cuda", "gpu:x"] {
            assert_eq!(text.parse::<DeviceChoice>(), Err(UnknownDevice(text.to_owned())));
        }
    }

    #[test]
    fn refusals_list_what_was_seen_and_what_to_do() {
        let adapters = vec![Adapter { name: "llvmpipe (software, vulkan)".into(), rejected: Some("slow".into()) }];
        let text = NoGpu::NoneUsable { adapters: adapters.clone() }.to_string();
        assert_eq!(
            text,
            "no usable GPU: gpu:0 is llvmpipe (software, vulkan): slow; use --device cpu, or --device gpu:N to use one all \
             the same"
        );
        assert!(NoGpu::NoSuch { number: 3, adapters }.to_string().contains("no gpu:3"));
        assert!(NoGpu::NoneUsable { adapters: Vec::new() }.to_string().contains("container"));
    }

    #[test]
    fn the_cpu_is_always_there_and_auto_never_fails() {
        assert_eq!(select(DeviceChoice::Cpu).unwrap().engine.description(), "cpu (flex)");
        assert!(select(DeviceChoice::Auto).is_ok());
        if !cfg!(feature = "gpu") {
            assert_eq!(select(DeviceChoice::Gpu).err(), Some(NoGpu::NotBuilt));
        }
    }
}
