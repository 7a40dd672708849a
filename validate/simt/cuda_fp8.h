/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's, which NCCL's header includes and whose types nothing here uses. */
