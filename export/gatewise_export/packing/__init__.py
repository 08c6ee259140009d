"""From a fitted system to a bundle: conversion, probing, verification."""
