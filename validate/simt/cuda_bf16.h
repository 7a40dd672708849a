/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's: what kernels need of it is an instruction, which translate.py replaces. */
