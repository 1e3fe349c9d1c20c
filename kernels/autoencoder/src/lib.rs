//! An autoencoder of series, such as those of sensors (Hinton and Salakhutdinov 2006, with ReLU): what it reconstructs badly
//! is unlike what it has learnt. 19,220 parameters for one channel of 140 values, 64 hidden units and a code of 8.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// Series that are recorded together.
    channels: u32[1..=4096] = 1,
    /// Values of each series.
    length: u32[1..=65_536] = 140,
    /// Units of the hidden layer on either side of the code.
    hidden: u32[1..=65_536] = 64,
    /// Numbers to which a sample is reduced.
    code: u32[1..=65_536] = 8,
}

struct Autoencoder {
    encoder: [Linear; 2],
    decoder: [Linear; 2],
}

impl Kernel for Autoencoder {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { channels, length, hidden, code } = settings;
        let values = channels * length;
        if code >= values {
            return Err(format!(
                "setting `code` is {code}, but must be less than the {values} values of a sample, or there is nothing to learn"
            ));
        }
        build.input("series", DType::F32, &[channels, length]);
        build.target("target", DType::F32, &[channels, length]);
        build.metric("squared_error");
        // Positions in a sequence that counts activations, too, as in PyTorch.
        Ok(Autoencoder {
            encoder: [
                Linear::new(values, hidden).build(build, "encoder.0"),
                Linear::new(hidden, code).build(build, "encoder.2"),
            ],
            decoder: [
                Linear::new(code, hidden).build(build, "decoder.0"),
                Linear::new(hidden, values).build(build, "decoder.2"),
            ],
        })
    }

    fn forward(&self, inputs: Vec<Tensor>, targets: Option<Tensor>, pass: &mut Pass) -> Result<Output, String> {
        let series = only_input(inputs)?; // [batch, channels, length]
        let x = self.encoder[0].forward(&flatten(&series), pass).relu();
        let code = self.encoder[1].forward(&x, pass);
        let x = self.decoder[0].forward(&code, pass).relu();
        let reconstruction = self.decoder[1].forward(&x, pass).reshape(&series.shape());
        Output::judged(reconstruction, targets, pass, loss::squared_error)
    }
}

export_kernel!(Autoencoder);
