//! Sizes of images and windows, checked.

/// What a convolution's sizes follow from, beside its operands. Pairs are (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Step between applications of the filter, in pixels.
    pub stride: [usize; 2],
    /// Zero pixels on both sides.
    pub padding: [usize; 2],
    /// Distance between taps, in pixels.
    pub dilation: [usize; 2],
    /// Groups of channels.
    pub groups: usize,
}

/// What a pooling's sizes follow from, beside its operand. Pairs are (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Window in pixels.
    pub kernel: [usize; 2],
    /// Step between windows, in pixels.
    pub stride: [usize; 2],
    /// Pixels on both sides that do not count.
    pub padding: [usize; 2],
}

/// A convolution's sizes. Every number is at least 1 but for the padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Samples.
    pub batch: usize,
    /// Input channels, of all groups.
    pub in_channels: usize,
    /// Input rows.
    pub height: usize,
    /// Input columns.
    pub width: usize,
    /// Output channels, of all groups.
    pub out_channels: usize,
    /// Output rows.
    pub out_height: usize,
    /// Output columns.
    pub out_width: usize,
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Step.
    pub stride: [usize; 2],
    /// Zeros on both sides.
    pub padding: [usize; 2],
    /// Distance between taps.
    pub dilation: [usize; 2],
    /// Groups.
    pub groups: usize,
}

/// Positions that a window of `kernel` taps, `dilation` apart, takes in `length` elements.
fn positions(length: usize, kernel: usize, stride: usize, padding: usize, dilation: usize) -> Option<usize> {
    if kernel == 0 || stride == 0 || dilation == 0 {
        return None;
    }
    let padded = padding.checked_mul(2)?.checked_add(length)?;
    let window = (kernel - 1).checked_mul(dilation)?.checked_add(1)?;
    Some(padded.checked_sub(window)? / stride + 1)
}

impl ConvShape {
    /// Sizes from the operands' shapes, input and weight `[out, in / groups, height, width]`.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn new(x: &[usize], weight: &[usize], options: ConvOptions) -> Result<ConvShape, String> {
        let &[batch, in_channels, height, width] = x else { return Err("the input needs rank 4".into()) };
        let &[out_channels, group_in, kernel_height, kernel_width] = weight else {
            return Err("the weight needs rank 4".into());
        };
        let ConvOptions { stride, padding, dilation, groups } = options;
        if groups == 0 || !in_channels.is_multiple_of(groups) || !out_channels.is_multiple_of(groups) {
            return Err(format!(
                "{groups} groups do not divide {in_channels} input and {out_channels} output channels"
            ));
        }
        if group_in != in_channels / groups {
            return Err(format!(
                "the weight has {group_in} input channels a group, the input {}",
                in_channels / groups
            ));
        }
        let out = |dim: usize, length, kernel| {
            positions(length, kernel, stride[dim], padding[dim], dilation[dim]).ok_or_else(|| {
                format!("the window does not fit: stride {stride:?}, padding {padding:?}, dilation {dilation:?}")
            })
        };
        let (out_height, out_width) = (out(0, height, kernel_height)?, out(1, width, kernel_width)?);
        let kernel = [kernel_height, kernel_width];
        Ok(ConvShape {
            batch,
            in_channels,
            height,
            width,
            out_channels,
            out_height,
            out_width,
            kernel,
            stride,
            padding,
            dilation,
            groups,
        })
    }

    /// Whether each channel is a group of its own.
    pub fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.in_channels && self.groups == self.out_channels
    }

    /// Input channels of a group.
    pub fn group_in(&self) -> usize {
        self.in_channels / self.groups
    }

    /// Output channels of a group.
    pub fn group_out(&self) -> usize {
        self.out_channels / self.groups
    }

    /// Products in one output pixel.
    pub fn taps(&self) -> usize {
        self.group_in() * self.kernel[0] * self.kernel[1]
    }

    /// Pixels of an input plane.
    pub fn in_pixels(&self) -> usize {
        self.height * self.width
    }

    /// Pixels of an output plane.
    pub fn out_pixels(&self) -> usize {
        self.out_height * self.out_width
    }

    /// Elements of an input sample.
    pub fn in_elements(&self) -> usize {
        self.in_channels * self.in_pixels()
    }

    /// Elements of an output sample.
    pub fn out_elements(&self) -> usize {
        self.out_channels * self.out_pixels()
    }

    /// Rows of a padded input plane.
    pub fn padded_height(&self) -> usize {
        self.height + 2 * self.padding[0]
    }

    /// Columns of a padded input plane.
    pub fn padded_width(&self) -> usize {
        self.width + 2 * self.padding[1]
    }

    /// Padding of the output's gradient with which the input's gradient is a convolution of stride 1, where there is one.
    pub fn mirrored_padding(&self) -> Option<[usize; 2]> {
        let mirrored = |dim: usize| (self.dilation[dim] * (self.kernel[dim] - 1)).checked_sub(self.padding[dim]);
        Some([mirrored(0)?, mirrored(1)?])
    }
}

/// A pooling's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Input rows.
    pub height: usize,
    /// Input columns.
    pub width: usize,
    /// Output rows.
    pub out_height: usize,
    /// Output columns.
    pub out_width: usize,
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Step.
    pub stride: [usize; 2],
    /// Padding on both sides.
    pub padding: [usize; 2],
}

impl PoolShape {
    /// Sizes from the operand's shape.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn new(x: &[usize], options: PoolOptions) -> Result<PoolShape, String> {
        let &[batch, channels, height, width] = x else { return Err("the input needs rank 4".into()) };
        let PoolOptions { kernel, stride, padding } = options;
        // A window that lies in the padding has no maximum and no mean.
        if padding[0] >= kernel[0] || padding[1] >= kernel[1] {
            return Err(format!("the padding {padding:?} is not smaller than the window {kernel:?}"));
        }
        let out = |dim: usize, length| {
            positions(length, kernel[dim], stride[dim], padding[dim], 1)
                .ok_or_else(|| format!("the window {kernel:?} does not fit: stride {stride:?}, padding {padding:?}"))
        };
        let (out_height, out_width) = (out(0, height)?, out(1, width)?);
        if kernel[0].saturating_mul(kernel[1]) > usize::from(u16::MAX) {
            return Err(format!("the window {kernel:?} is too large"));
        }
        let shape = PoolShape { batch, channels, height, width, out_height, out_width, kernel, stride, padding };
        let last = |dim: usize, out: usize, length: usize| (out - 1) * stride[dim] >= padding[dim] + length;
        if last(0, out_height, height) || last(1, out_width, width) {
            return Err(format!("the last window {kernel:?} lies in the padding {padding:?}"));
        }
        Ok(shape)
    }

    /// Pixels of an input plane.
    pub fn in_pixels(&self) -> usize {
        self.height * self.width
    }

    /// Pixels of an output plane.
    pub fn out_pixels(&self) -> usize {
        self.out_height * self.out_width
    }

    /// Number of planes.
    pub fn planes(&self) -> usize {
        self.batch * self.channels
    }

    /// Whether windows are 2 x 2, side by side, and cover the input.
    pub fn is_halving(&self) -> bool {
        self.kernel == [2, 2]
            && self.stride == [2, 2]
            && self.padding == [0, 0]
            && self.height.is_multiple_of(2)
            && self.width.is_multiple_of(2)
    }

    /// Calls `visit(tap, pixel)` for each pixel of the window of an output.
    #[inline(always)]
    pub fn window(&self, output: usize, mut visit: impl FnMut(usize, usize)) {
        let (row, column) = (output / self.out_width * self.stride[0], output % self.out_width * self.stride[1]);
        for y in 0..self.kernel[0] {
            for x in 0..self.kernel[1] {
                let (y_in, x_in) =
                    ((row + y).wrapping_sub(self.padding[0]), (column + x).wrapping_sub(self.padding[1]));
                if y_in < self.height && x_in < self.width {
                    visit(y * self.kernel[1] + x, y_in * self.width + x_in);
                }
            }
        }
    }

    /// The pixel at a tap of the window of an output.
    pub fn pixel(&self, output: usize, tap: usize) -> usize {
        let row = output / self.out_width * self.stride[0] + tap / self.kernel[1] - self.padding[0];
        let column = output % self.out_width * self.stride[1] + tap % self.kernel[1] - self.padding[1];
        row * self.width + column
    }
}
